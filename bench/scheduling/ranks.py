"""What it costs control to choose among many active programs: microseconds a step beyond the work for its commands.

A step takes 64 commands. Once 64 programs are active and once more, and each program sends its next command when the
last one was answered. So both loads have the same commands a step, and only the number of those that wait differs.
Further programs may be known and idle. The two loads take turns, and of each the quickest 20 steps count.

Beside the times, the bench counts calls of functions, those of C included: other processes don't change that number.
"""

from __future__ import annotations

import cProfile
import gc
import sys
import time
from dataclasses import replace

import numpy as np

from bench.control import answer, spec
from bench.harness import report
from bench.product.common import ControlSettings, Op, SystemClock, abi
from bench.product.control import LIVE, Core, StartRequest

STEP = 64
STEPS = 20
TURNS = 10
GOAL_US = 50.0
KNOWN_GOAL_US = 1000.0
_HEAD = abi.u32([0, 1, 0, 1, 0, 0])


class Load:
    """A core with programs, of which the first `active` always have a command that waits or computes."""

    def __init__(self, order: str, active: int, known: int) -> None:
        settings = ControlSettings.model_validate({"order": order, "max_programs": 2 * known})
        self.core = core = Core(settings, SystemClock())
        for name in ("short", "long"):
            for run in range(50):
                core.lifecycle.history.ended(("", name, ""), (1 if name == "short" else 20) * (1 + run / 50))
        self.engine = core.on_engine("e", "i", replace(spec(), max_batch_commands=STEP))
        self.session = core.on_runtime("r", "i", "", [])
        for handle in range(1, known + 1):
            name = "long" if handle % 2 else "short"
            core.on_start(self.session, StartRequest(handle, f"p{handle}", name=name))
        handles = list(range(1, active + 1))
        self.send(handles, Op.ALLOC_EMB, abi.u32([0]))
        self.send(handles, Op.FORWARD, _HEAD)
        core.pump()
        self.lanes = {q.lane: p.handle for p in core.lifecycle.programs.values() for q in p.queues.values()}

    def send(self, handles: list[int], op: int, data: bytes) -> None:
        """Send one command of each program."""
        rows = [(int(op), 0, 1, 0, 0, 0, 0, n * len(data), len(data)) for n in range(len(handles))]
        records = np.array(rows, abi.RECORD).tobytes()
        self.core.on_commands(self.session, np.array(handles, "<u4").tobytes(), records, data * len(handles))

    def run(self, steps: int) -> float:
        """Run steps; returns the seconds of CPU time that each took control."""
        begun = time.thread_time()
        for _ in range(steps):
            sent, self.engine.outgoing = self.engine.outgoing, []
            for step in sent:
                self.core.on_result(self.engine, replace(answer(step), computed_tokens=STEP, device_s=0.01))
                lanes = [lane for batch in step.batches for lane in batch.lane.tolist()]
                self.send([self.lanes[lane] for lane in lanes], Op.FORWARD, _HEAD)
            self.core.pump()
        return (time.thread_time() - begun) / steps

    def calls(self) -> float:
        """Run steps; returns how many functions were called in each."""
        with cProfile.Profile() as profile:
            self.run(STEPS)
        return sum(entry.callcount for entry in profile.getstats()) / STEPS


def beyond(order: str, active: int, known: int, repeat: int) -> tuple[float, float]:
    """Return what a step with so many active and known programs costs beyond one with only those that it takes.

    Returns:
        Microseconds, and calls of functions.
    """
    few, many = Load(order, STEP, STEP), Load(order, active, known)
    turns = [(few.run(STEPS), many.run(STEPS)) for _ in range(repeat * TURNS)]
    more_us = 1e6 * (min(more for _, more in turns) - min(less for less, _ in turns))
    return more_us, many.calls() - few.calls()


def main() -> int:
    """Run the command line."""
    parser = report.parser("ranks", __doc__, plots=False)
    parser.add_argument("--active", type=report.positive, default=1000, metavar="N", help="programs (%(default)s)")
    parser.add_argument("--known", type=report.positive, default=100_000, metavar="N", help="programs (%(default)s)")
    args = parser.parse_args()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    title = f"Choosing {STEP} of {args.active} active programs, us a step beyond that of {STEP}"
    columns = ["order", "all known are active", "calls", f"{args.known} known", "calls of these"]
    result = report.Report("ranks", title, columns)
    for order in LIVE:
        report.progress(f"{order} ...")
        active_us, active = beyond(order, args.active, args.active, args.repeat)
        known_us, known = beyond(order, args.active, args.known, args.repeat)
        result.rows.append((order, active_us, active, known_us, known))
    for column, name, bound in ((1, "active", GOAL_US), (3, "known", KNOWN_GOAL_US)):
        worst = max(float(row[column]) for row in result.rows)
        result.goals.append(report.Goal(f"us a step, the costliest order, {name}", worst, bound, at_least=False))
    return report.emit([result], args)


if __name__ == "__main__":
    sys.exit(main())
