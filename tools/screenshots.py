"""Takes the README's pictures of the web page: a real server with the demo model, and the page in Chromium.

Usage: python -m tools.screenshots
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.async_api import Page, ViewportSize, async_playwright, expect

import tartlet
from tartlet.local import LocalStack, StackConfig

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "images"
MODEL: Final = ROOT / "models" / "demo"
WIDTH, HEIGHT = 1180, 720
WAIT_MS: Final = 60_000
PROGRAMS: Final = {
    "vote.py": """
import asyncio
from inferlet import Context, Temperature

async def main():
    for a in range(100, 1000):
        async with Context() as ctx:
            ctx.fill(f"{a}+588=")
            drafts = (draft.generate_until(max_tokens=48, sampler=Temperature(1.5)) for draft in ctx.fork(3))
            texts = await asyncio.gather(*drafts)
        print(f"{a} + 588:", ", ".join(text.rpartition(" ")[2] for text in texts), flush=True)
""",
    "sums.py": """
from inferlet import Context

async def main():
    for a in range(100, 1000):
        async with Context() as ctx:
            ctx.fill(f"{a}+{a}=")
            print(await ctx.generate_until(max_tokens=48), flush=True)
""",
    "asks.py": """
from inferlet import receive, send

async def main():
    send("which number?")
    await receive()
""",
}
"""What runs in the first picture, by the names that the page shows."""


async def programs(page: Page, address: str, shown: str) -> None:
    """Show the table of programs with one program opened, whose calls and output come in."""
    await page.goto(f"http://{address}/#programs/{shown}")
    await expect(page.get_by_role("log", name="Output")).to_contain_text(" + 588: ", timeout=WAIT_MS)
    await page.wait_for_timeout(4000)  # the picture of calls fills
    await page.screenshot(path=IMAGES / "page-programs.png")


async def playground(page: Page) -> None:
    """Show the playground behind a run of the program that it begins with."""
    await page.emulate_media(color_scheme="dark")
    await page.get_by_role("link", name="playground").click()
    await page.get_by_role("button", name="Run", exact=True).click()
    await expect(page.get_by_text("tokens in")).to_be_visible(timeout=WAIT_MS)
    await page.screenshot(path=IMAGES / "page-playground.png")


async def main() -> int:
    """Serve, launch, and take the pictures."""
    binary = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if binary is None:
        sys.stderr.write("no Chromium: apt-get install chromium-headless-shell\n")
        return 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="tt-") as place:
        config = StackConfig(engine="torch", model=MODEL, directory=Path(place), http=address)
        async with (
            LocalStack(config) as stack,
            tartlet.AsyncClient(stack.address) as client,
            async_playwright() as playwright,
        ):
            launched = [
                await client.launch(tartlet.Source(text.encode(), filename=name)) for name, text in PROGRAMS.items()
            ]
            browser = await playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
            page = await browser.new_page(viewport=ViewportSize(width=WIDTH, height=HEIGHT))
            await programs(page, address, launched[0].program_id)
            for each in launched:
                await client.kill(each.program_id)
            await playground(page)
            await browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
