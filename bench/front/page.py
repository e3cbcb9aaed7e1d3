"""Script time a frame of the web page while 1,000 programs change four times a second, from Chromium's own trace.

The page is the gateway's, in a headless Chromium. The page's own code parses and applies messages as control's watcher
sends them; each changes every program. The time is CPU time of the page's main thread in scripts (callbacks,
microtasks, timers), summed from one frame's beginning to the next. Frames without a script aren't counted.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from bench.harness import report
from bench.harness.stack import free_ports, running_stack

PROGRAMS: Final = 1000
EVERY_MS: Final = 250
GOAL_MS: Final = 8.0
_BEGIN: Final = "BeginMainThreadFrame"
_SCRIPTS: Final = frozenset(
    {"FunctionCall", "RunMicrotasks", "FireAnimationFrame", "TimerFire", "FireIdleCallback", "EventDispatch"}
)
_CATEGORIES: Final = "devtools.timeline,disabled-by-default-devtools.timeline.frame,v8.execute"
_MAKE: Final = """([count, rounds]) => {
    const told = (round) => JSON.stringify({whole: round === 0, connected: true, totals: {programs: count}, engines: [],
        engines_gone: [], programs_gone: [], programs: Array.from({length: count}, (_, i) => ({id: `p${i}`,
        name: `program-${i}.py`, state: "running", model: "fake", tenant: "", sampled_tokens: round * 10 + i,
        input_tokens: 100, cached_tokens: 0, pages: round % 50, peak_pages: 50, age_s: i + round / 4,
        waited_s: round / 10, service_s: round / 5, commands: round, in_flight: 1, engines: ["e0"],
        queues: {1: 2}, recovered_s: 0}))});
    window.made = Array.from({length: rounds}, (_, round) => told(round));
}"""
_FEED: Final = """async (everyMs) => {
    const live = await import("/page/live.js");
    for (const text of window.made) {
        const tell = () => { live.apply(JSON.parse(text)); live.changed(); };
        await new Promise((done) => setTimeout(() => { tell(); done(); }, everyMs));
    }
}"""


def frames_ms(events: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Return the script time of each frame that ran one, in milliseconds of CPU time, [frames].

    Args:
        events: of a trace of the categories `_CATEGORIES`, with `ts`, `dur` and `tdur` in microseconds.
    """
    threads: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for event in events:
        if event["name"] == _BEGIN or (event["name"] in _SCRIPTS and event.get("ph") == "X"):
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    spent: list[float] = []
    for of_thread in threads.values():
        spent += _of_thread(sorted(of_thread, key=lambda e: e["ts"]))
    return np.array(spent)


def _of_thread(events: list[Mapping[str, Any]]) -> list[float]:
    spent, in_frame, until = [], 0.0, 0.0
    for event in events:
        if event["name"] == _BEGIN:
            spent.append(in_frame)
            in_frame = 0.0
        elif event["ts"] >= until:  # a script within another one is counted with that one
            in_frame += event.get("tdur", event["dur"]) / 1e3
            until = event["ts"] + event["dur"]
    return [ms for ms in (*spent, in_frame) if ms > 0]


async def traced(page: Any, seconds: float) -> np.ndarray:
    """Feed a page of the gateway in Playwright, and return the script time of its frames, milliseconds."""
    browser = page.context.browser
    rounds = max(4, round(seconds * 1000 / EVERY_MS))
    await page.evaluate(_MAKE, [PROGRAMS, rounds])
    await page.evaluate(_FEED, EVERY_MS)  # what runs first is compiled
    cdp = await browser.new_browser_cdp_session()
    kept: list[Mapping[str, Any]] = []
    complete = asyncio.Event()
    cdp.on("Tracing.dataCollected", lambda told: kept.extend(told["value"]))
    cdp.on("Tracing.tracingComplete", lambda _: complete.set())
    await cdp.send("Tracing.start", {"categories": _CATEGORIES, "transferMode": "ReportEvents"})
    await page.evaluate(_FEED, EVERY_MS)
    await cdp.send("Tracing.end")
    await complete.wait()
    return frames_ms(kept)


async def measure(seconds: float) -> report.Report:
    """Make the table."""
    from playwright.async_api import async_playwright

    (port,) = free_ports(1)
    binary = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    async with running_stack(engine="fake", http=f"127.0.0.1:{port}"), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(f"http://127.0.0.1:{port}/")
        spent = await traced(page, seconds)
        await browser.close()
    columns = ["programs", "frames with scripts", "median ms", "p99 ms", "longest ms"]
    result = report.Report("gateway-page", "Web page: script time a frame", columns)
    middle, p99, most = (float(np.quantile(spent, share)) for share in (0.5, 0.99, 1.0))
    result.rows.append((PROGRAMS, len(spent), middle, p99, most))
    result.goals.append(report.Goal(f"{PROGRAMS} programs, longest frame, ms", most, GOAL_MS, at_least=False))
    return result


def main() -> int:
    """Run the command line."""
    parser = report.parser("page", __doc__, repeat=1, plots=False)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (%(default)s)")
    args = parser.parse_args()
    return report.emit([asyncio.run(measure(args.seconds))], args)


if __name__ == "__main__":
    sys.exit(main())
