"""What hosting WebAssembly guests costs by itself: launches and host calls, no network, no engine.

Launches are measured from `create` of the first to the first submission of each, all at once, on one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness.intervals import median
from bench.harness.report import Report, emit, parser, progress
from bench.product.runtime import (
    Delivery,
    Fiber,
    HostConfig,
    LinkedModule,
    Phase,
    QuietHooks,
    WasmHost,
    build,
    default_cache_dir,
)

ROOT = Path(__file__).parents[1]
PROBE = ROOT / "tests" / "runtime" / "wasm" / "guests" / "probe.wasm"
MESSAGE = ROOT / "inferlets" / "sdk" / "c" / "examples" / "send_and_exit.wasm"
PYTHON_MESSAGE = """
from inferlet._wire import host as _host
async def main():
    _host.backend.submit(b"ok")
    _host.backend.wait(1, 1)
"""
PYTHON_CALLS = """
import time
from inferlet._wire import host as _host
async def main():
    submit, wait = _host.backend.submit, _host.backend.wait
    data = bytes(2064)
    for _ in range(1000):
        submit(data)
    wait(1, 1)
    while wait(64, 1):
        pass
"""
SUBMIT_RECORDS = 64


def told(what: str, rounds: int) -> Iterator[int]:
    """Count the rounds of a measurement, and tell about the first one and then one every two seconds at most."""
    last_s = float("-inf")
    for i in range(rounds):
        if time.monotonic() - last_s >= 2:
            progress(f"wasm: {what}: round {i + 1} of {rounds}")
            last_s = time.monotonic()
        yield i


class FirstSubmission(QuietHooks):
    """Hooks that note when the guest first submitted."""

    def __init__(self) -> None:
        """Begin with no submission."""
        super().__init__()
        self.at_s = 0.0

    def on_submit(self, data: bytes) -> None:
        """Note the time of the first submission."""
        self.at_s = self.at_s or time.perf_counter()


def launch(host: WasmHost, program: LinkedModule, source: str, count: int, *, spares: bool = False) -> list[float]:
    """Launch `count` guests at once, with or without spares; seconds to each guest's first submission."""
    batch = 16
    while spares and host.top_up(program, count):
        pass
    begin = time.perf_counter()
    all_hooks: list[FirstSubmission] = []
    guests: list[Fiber] = []
    for at in range(0, count, batch):
        group = []
        for _ in range(min(batch, count - at)):
            hooks = FirstSubmission()
            guest = host.create(program, hooks=hooks)
            guest.start(source, "bench.py")
            group.append(guest)
            all_hooks.append(hooks)
        while any(guest.phase is Phase.READY for guest in group):
            host.step_many(group)
        guests += group
    for guest in guests:
        guest.kill()
    host.drain()
    return [hooks.at_s - begin for hooks in all_hooks]


def time_steps(guest: Fiber) -> float:
    """Step a guest until it waits or ends; the seconds that took."""
    begin = time.perf_counter()
    while guest.step() is Phase.READY:
        pass
    return time.perf_counter() - begin


def calls(host: WasmHost, program: LinkedModule, source: str, alive: int) -> tuple[float, float]:
    """Measure microseconds per submitted record, and per wake-up, with `alive` other guests suspended."""
    others = []
    for _ in range(alive):
        other = host.create(program)
        other.start(source, "bench.py")
        time_steps(other)
        others.append(other)
    guest = host.create(program, hooks=FirstSubmission())
    guest.start(source, "bench.py")
    if source:
        submit_us = time_steps(guest) / 1000 / SUBMIT_RECORDS * 1e6
        guest.deliver(Delivery(b"", 0))
    else:
        time_steps(guest)
        guest.deliver(Delivery(b"S", 0))
        submit_us = time_steps(guest) / 10_000 / SUBMIT_RECORDS * 1e6
        guest = host.create(program)
        guest.start()
        time_steps(guest)
        guest.deliver(Delivery(b"w", 0))
    time_steps(guest)
    answer = Delivery(bytes(48), 0)
    begin = time.perf_counter()
    for _ in range(5000):
        guest.deliver(answer)
        while guest.step() is Phase.READY:
            pass
    wake_us = (time.perf_counter() - begin) / 5000 * 1e6
    for other in (guest, *others):
        other.kill()
    host.drain()
    return submit_us, wake_us


def wake_many(host: WasmHost, program: LinkedModule, count: int) -> float:
    """Measure microseconds per wake-up when `count` suspended guests are delivered to and stepped together."""
    guests = []
    for _ in range(count):
        guest = host.create(program)
        guest.start()
        time_steps(guest)
        guest.deliver(Delivery(b"w", 0))
        time_steps(guest)
        guests.append(guest)
    answer = Delivery(bytes(48), 0)
    rounds = max(1, 5000 // count)
    begin = time.perf_counter()
    for _ in range(rounds):
        for guest in guests:
            guest.deliver(answer)
        while any(guest.phase is Phase.READY for guest in guests):
            host.step_many(guests)
    each_us = (time.perf_counter() - begin) / rounds / count * 1e6
    for guest in guests:
        guest.kill()
    host.drain()
    return each_us


def main() -> int:
    """Measure and print."""
    options = parser("wasm", __doc__, goals=False, plots=False).parse_args()
    rounds = options.repeat
    report = Report(
        "wasm", "WebAssembly host", ["measure", "core, shim", "core, ctypes", "python, shim", "python, ctypes"]
    )
    cache_dir = default_cache_dir()
    python_guest = build(cache_dir)
    results: dict[str, dict[str, float]] = {}
    for boundary in ("shim", "ctypes"):
        with WasmHost(HostConfig(boundary=boundary, cache_dir=cache_dir)) as host:
            probe = host.load(host.aot.compile(PROBE.read_bytes()))
            message = host.load(host.aot.compile(MESSAGE.read_bytes()))
            python = host.load(python_guest)
            for name, program, source in (("core", message, ""), ("python", python, PYTHON_MESSAGE)):
                column = f"{name}, {boundary}"
                for count in (1, 128, 896):
                    launch(host, program, source, count)  # warm
                    what = f"{column}: launch {count} at once"
                    times = sorted(t for _ in told(what, rounds) for t in launch(host, program, source, count))
                    results.setdefault(f"launch {count} at once, median (ms)", {})[column] = median(times) * 1e3
                    again = told(f"{column}: launch {count}, spares", rounds)
                    spared = sorted(t for _ in again for t in launch(host, program, source, count, spares=True))
                    results.setdefault(f"launch {count}, spares, median (ms)", {})[column] = median(spared) * 1e3
                    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
                    results.setdefault(f"launch {count} at once, p99 (ms)", {})[column] = p99 * 1e3
                    host.unload(program)
                    host.drain()
            for name, program, source in (("core", probe, ""), ("python", python, PYTHON_CALLS)):
                column = f"{name}, {boundary}"
                for alive in (0, 895):
                    each = told(f"{column}: calls, {alive + 1} alive", rounds)
                    pairs = [calls(host, program, source, alive) for _ in each]
                    results.setdefault(f"record submitted, 64 a submit, {alive + 1} alive (us)", {})[column] = median(
                        [pair[0] for pair in pairs]
                    )
                    results.setdefault(f"wait and wake, {alive + 1} alive (us)", {})[column] = median(
                        [pair[1] for pair in pairs]
                    )
            results.setdefault("wait and wake, 896 together (us)", {})[f"core, {boundary}"] = median(
                [wake_many(host, probe, 896) for _ in told(f"core, {boundary}: wake-ups, 896 together", rounds)]
            )
    for measure, values in results.items():
        report.rows.append([measure, *(round(values[c], 3) if c in values else "" for c in report.columns[1:])])
    return emit([report], options)


if __name__ == "__main__":
    sys.exit(main())
