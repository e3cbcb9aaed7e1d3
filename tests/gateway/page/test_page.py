"""The web page in a real browser: live programs and engines, the playground, keys, and a control that dies."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, Page, async_playwright, expect

import tartlet
from bench.front.page import GOAL_MS, traced
from tests.e2e.serving import Serving, out, program, serving
from tests.gateway.conftest import Gateway, free_port
from tests.gateway.processes import own_gateway
from tests.lacking import lacking
from tests.run_directory import run_directory

ENDLESS = "endless"
WAIT_MS = 30_000
TURNS = 60
"""More than two pages of a journal."""
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def served() -> Iterator[Gateway]:
    """A server of this module alone: its programs and its control are the test's."""
    port = free_port()
    with run_directory() as directory, serving(directory, http=f"127.0.0.1:{port}") as server:
        yield Gateway(server, port)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    binary = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if binary is None:
        lacking("no Chromium: apt-get install chromium-headless-shell")
    async with async_playwright() as playwright:
        shown = await playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        try:
            yield shown
        finally:
            await shown.close()


@asynccontextmanager
async def page(url: str, **options: Any) -> AsyncIterator[Page]:
    """The page, whose scripts may not fail and which may load nothing that its policy forbids."""
    wrong: list[str] = []
    async with browser() as shown:
        opened = await shown.new_page(**options)
        opened.set_default_timeout(WAIT_MS)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda m: wrong.append(m.text) if "Content Security Policy" in m.text else None)
        await opened.goto(url)
        yield opened
    assert wrong == []


async def accessible(shown: Page) -> None:
    """Nothing that axe finds is wrong with what the page shows now."""
    found = await Axe().run(shown)
    assert found.violations_count == 0, found.generate_report()


async def launched(server: Serving, tenant: str = "", **fields: Any) -> str:
    spec = tartlet.LaunchSpec(program(ENDLESS), tenant=tenant, **fields)
    async with tartlet.AsyncClient(server.address) as client:
        return (await client.launch(spec=spec)).program_id


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_programs_come_are_shown_and_go(served: Gateway, scheme: str) -> None:
    async with page(served.url, color_scheme=scheme) as shown:
        await expect(shown.get_by_text("No program runs.")).to_be_visible()
        await accessible(shown)
        first, second = await launched(served.server), await launched(served.server)
        rows = shown.get_by_role("rowgroup").get_by_role("row")
        await expect(rows).to_have_count(3)
        await shown.get_by_role("grid").locator(".body").focus()
        await shown.keyboard.press("ArrowDown")
        await shown.keyboard.press("Enter")
        await expect(shown.get_by_text(first, exact=True)).to_be_visible()
        await expect(shown.get_by_role("img", name=re.compile(r"Calls of \d+ queues"))).to_be_visible()
        await expect(shown.get_by_role("row").filter(has_text="sample").first).to_be_visible()
        await accessible(shown)
        await shown.get_by_role("button", name="End the program").click()
        await expect(shown.get_by_text("This program doesn't run any more.")).to_be_visible()
        await expect(rows).to_have_count(2)
        out(served.server.run_dir, "kill", second)
        await expect(shown.get_by_text("No program runs.")).to_be_visible()
        await shown.get_by_role("link", name="engines").click()
        await expect(shown.get_by_role("heading", name="ready")).to_be_visible()
        await expect(shown.get_by_role("img", name=re.compile(r"Steps of 5 s: \d+ steps"))).to_be_visible()
        await accessible(shown)


async def test_a_journal_is_read_turn_by_turn_and_by_keyboard(served: Gateway) -> None:
    told = await launched(served.server)
    async with tartlet.AsyncClient(served.server.address) as client:
        texts = TURNS
        async for event in await client.attach(told):
            if isinstance(event, tartlet.Message) and event.offset > texts:  # a slow machine tells several in one turn
                if (await client.read_journal(told, 1, count=1))["total"] > TURNS:
                    break
                texts = event.offset + TURNS
        await client.kill(told)  # what is read stands still
    async with page(f"{served.url}/#programs/{told}", viewport={"width": 360, "height": 740}) as shown:
        await shown.get_by_role("button", name="Show the journal").focus()
        await shown.keyboard.press("Enter")
        turns = shown.get_by_role("region", name="Turns of the journal")
        await expect(turns.get_by_role("row").filter(has_text="embed_txt").first).to_contain_text("endless.py:")
        await expect(turns.get_by_role("row").filter(has_text="told: result").first).to_contain_text("of get_model")
        await expect(shown.get_by_text(re.compile(r"^Turns 1 to 25 of \d+$"))).to_be_visible()
        await accessible(shown)
        assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
        await shown.get_by_role("button", name="Later turns").click()
        await expect(turns.get_by_text("Turn 26,")).to_be_visible()
        await shown.get_by_label("Show prompts and texts").check()
        await expect(shown.get_by_text(re.compile(r"^Turns 26 to 50 of \d+$"))).to_be_visible()
    untold = await launched(served.server, durable=False)
    async with page(f"{served.url}/#programs/{untold}") as shown:
        await shown.get_by_role("button", name="Show the journal").click()
        await expect(shown.get_by_text("has no journal here: it keeps none")).to_be_visible()
        await accessible(shown)
    out(served.server.run_dir, "kill", untold)


async def test_the_playground_runs_a_program_and_marks_the_line_that_fails(served: Gateway) -> None:
    async with page(f"{served.url}/#playground", viewport={"width": 360, "height": 740}) as shown:
        await shown.get_by_role("button", name="Run", exact=True).click()
        await expect(shown.get_by_text(re.compile(r"^32 tokens in"))).to_be_visible()
        assert len(await shown.get_by_role("log").inner_text()) >= 16
        await shown.get_by_label("Program, in Python").fill(
            "async def main(args):\n    x = 1\n    raise ValueError(x)\n"
        )
        await shown.keyboard.press("Control+Enter")
        await expect(shown.get_by_role("alert")).to_contain_text("Line 3: raise ValueError(x)")
        await expect(shown.locator(".numbers .wrong")).to_have_text("3")
        await accessible(shown)
        assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
        await shown.get_by_label("Program, in Python").fill("import time\nasync def main(a):\n    while True: pass\n")
        await shown.get_by_role("button", name="Run", exact=True).click()
        await shown.get_by_role("button", name="Stop").click()
        await expect(shown.get_by_role("alert")).to_be_visible()


async def test_a_key_is_asked_for_and_other_tenants_programs_are_not_shown(served: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = out(served.server.run_dir, "keys", "create", "--tenant", "a", "--file", str(file)).strip()
    mine, other = await launched(served.server, "a"), await launched(served.server, "b")
    with own_gateway(served, tmp_path, KEYS=str(file)) as own:  # its page is at another address than this machine's own
        async with page(own.url) as shown:
            await shown.get_by_label("API key").fill("wrong")
            await shown.get_by_role("button", name="Use this key").click()
            await accessible(shown)
            await shown.get_by_label("API key").fill(key)
            await shown.get_by_role("button", name="Use this key").click()
            rows = shown.locator(".body [role=row]")
            await expect(rows).to_have_count(1)
            await rows.first.click()
            await expect(shown.get_by_text(mine, exact=True)).to_be_visible()
            assert other not in await shown.content()
    assert key not in own.log.read_text()
    for each in (mine, other):
        out(served.server.run_dir, "kill", each)


async def test_a_page_that_has_not_heard_anything_yet_counts_nothing(served: Gateway) -> None:
    async with browser() as shown:
        opened = await shown.new_page()
        opened.set_default_timeout(WAIT_MS)
        await opened.route_web_socket("**/v1/live", lambda _: None)  # the connection stands, and nothing comes
        for tab, empty in (("programs", "No program runs"), ("engines", "No engine is connected")):
            await opened.goto(f"{served.url}/#{tab}")
            await expect(opened.get_by_role("heading", level=2)).to_have_text(re.compile("connecting$"))
            await expect(opened.get_by_text(empty)).to_have_count(0)


async def test_a_page_says_that_control_is_away_and_goes_on_when_it_is_back(served: Gateway) -> None:
    async with page(served.url) as shown:
        status = shown.get_by_role("status")
        await expect(status).to_have_text("Live")
        count = served.server.text().count("control serves")
        served.server.kill("control")
        await expect(status).to_contain_text("Recovering")
        await asyncio.to_thread(served.server.until, "control serves", count + 1)
        await expect(status).to_have_text("Live")


async def test_a_thousand_programs_put_few_rows_into_the_document(served: Gateway) -> None:
    async with page(served.url) as shown:
        await expect(shown.get_by_role("status")).to_have_text("Live")
        rows = await shown.evaluate(
            """async () => {
                const live = await import("/page/live.js");
                const program = (i) => ({id: `p${i}`, name: `p${i}`, state: "running", model: "m", sampled_tokens: i,
                    pages: 1, age_s: 1, waited_s: 0, service_s: 0, engines: [], queues: {}});
                const programs = Array.from({length: 1000}, (_, i) => program(i));
                live.apply({whole: true, connected: true, totals: {programs: 1000}, engines: [], programs,
                    engines_gone: [], programs_gone: []});
                live.changed();
                await new Promise((done) => setTimeout(done, 500));
                return document.querySelectorAll(".body [role=row]").length;
            }"""
        )
        assert 10 <= rows <= 50
        assert await shown.get_by_role("grid").get_attribute("aria-rowcount") == "1001"


async def test_a_thousand_programs_that_change_take_few_milliseconds_of_script_a_frame(served: Gateway) -> None:
    async with page(served.url) as shown:
        await expect(shown.get_by_role("status")).to_have_text("Live")
        spent = await traced(shown, 4.0)
    assert len(spent) >= 16, "each message is a frame's"
    assert np.quantile(spent, 0.9) < GOAL_MS, spent  # CPU time, so that other work on the machine counts little


async def test_steps_are_joined_by_their_numbers(served: Gateway) -> None:
    async with page(served.url) as shown:
        joined = await shown.evaluate(
            """async () => {
                const {following} = await import("/page/live.js");
                const steps = (...numbers) => numbers.map((n) => [n, n, n]);
                const numbers = (known, told) => following(known, told).map((step) => step[0]);
                return [numbers([], steps(4, 5)), numbers(steps(4, 5), steps(5, 6)), numbers(steps(5, 6), steps(5, 6)),
                    numbers(steps(5, 6), steps(1, 2)), numbers(steps(5), [])];
            }"""
        )
        assert joined == [[4, 5], [4, 5, 6], [5, 6], [1, 2], [5]]


def test_files_carry_the_policy_and_are_asked_for_again_by_their_tag(served: Gateway) -> None:
    with served.client() as http:
        reply = http.get("/")
        assert reply.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "<script>" not in reply.text
        again = http.get("/", headers={"if-none-match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for path in ("/page/../app.py", "/page/%2e%2e/files.py", "/page/vendor", "/page/nothing.js"):
            missing: httpx.Response = http.get(path)
            assert missing.status_code == 404
