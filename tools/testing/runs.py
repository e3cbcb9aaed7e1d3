"""Runs pytest processes, one or several at a time, and the tests that failed once more, alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.testing import outcome
from tools.testing.exceptions import Exceptions, read

ROOT: Final = Path(__file__).resolve().parents[2]
NOTES: Final = "TARTLET_TESTS_RECOVERED"
"""The variable that names a file in which several runs note their recovered tests. The last run's closing line counts
all of them."""

END_S: Final = 60.0
"""How long an interrupted pytest may take to tidy up."""

_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that one pytest process runs.

    Attributes:
        name: A short name, unique in a run.
        arguments: Arguments of pytest.
        python: The interpreter and its flags, up to pytest's arguments.
    """

    name: str
    arguments: tuple[str, ...]
    python: tuple[str, ...] = (sys.executable, "-m", "pytest")


@dataclass
class _Process:
    part: Part
    popen: subprocess.Popen[bytes]
    output: Path | None
    start: float = field(default_factory=time.monotonic)


class Runner:
    """Runs parts, at most `at_once` at a time.

    With one part, or one at a time, output appears as it is written; else each part's output appears when it ends.
    """

    def __init__(self, at_once: int = 1, environment: Mapping[str, str] | None = None) -> None:
        self.at_once = at_once
        self.environment = dict(os.environ if environment is None else environment)
        self.total = Counter[str]()
        self._recovered: tuple[str, ...] = ()
        self._books = ""

    def run(self, parts: Sequence[Part], exceptions: Exceptions | None = None) -> int:
        """Runs all parts, then what failed once more, and returns the exit status of the whole.

        The status is pytest's own where pytest didn't get through its tests. Such a part isn't run again.
        """
        start = time.monotonic()
        exceptions = read() if exceptions is None else exceptions
        with tempfile.TemporaryDirectory(prefix="tt-pytest-") as place:
            status = self._judged(parts, Path(place), exceptions)
            recovered = self._all_recovered(Path(place))
        for test in recovered:
            print(f"== recovered: {test} failed at first and passed when run again", flush=True)
        if len(parts) > 1:
            if self._books:
                print(f"== {self._books}", flush=True)
            if outcome.has_wrong_books(self._books):
                print("== a book of control was wrong: the test that failed at first says which", flush=True)
            self.total["recovered"] = len(recovered)
            print(outcome.closing_line(self.total, time.monotonic() - start), flush=True)
        return status

    def _all_recovered(self, place: Path) -> list[str]:
        notes = Path(self.environment.get(NOTES) or place / "notes")
        return outcome.noted(notes, self._recovered)

    def _judged(self, parts: Sequence[Part], place: Path, exceptions: Exceptions) -> int:
        statuses = self._all(parts, place)
        broken = [s for s in statuses.values() if s not in {outcome.OK, outcome.FAILED, outcome.NOTHING_COLLECTED}]
        failed_parts = [p for p in parts if statuses[p.name] == outcome.FAILED]
        first = {p.name: outcome.failures(place / p.name) for p in failed_parts}
        mute = [name for name, tests in first.items() if not tests]
        for name in mute:
            print(f"== {name}: pytest failed without naming a test", flush=True)
        if set(statuses.values()) == {outcome.NOTHING_COLLECTED}:
            return outcome.NOTHING_COLLECTED
        verdict = outcome.judge(_flat(first), self._again(failed_parts, first, place, exceptions), exceptions)
        for line in verdict.lines():
            print(line, flush=True)
        outcome.correct(self.total, verdict)
        self._recovered = verdict.recovered
        if broken:
            return broken[0]
        return outcome.FAILED if verdict.failed or mute else outcome.OK

    def _again(
        self, parts: Sequence[Part], first: Mapping[str, set[str]], place: Path, exceptions: Exceptions
    ) -> set[str]:
        """Runs the failed tests again, one part after the other, and returns those that are still failed."""
        failed = _flat(first)
        if len(failed) > outcome.MAX_RETRIED:
            print(f"== {len(failed)} tests failed, more than {outcome.MAX_RETRIED}: none is run again", flush=True)
            return failed
        still = {test for test in failed if not exceptions.runs_again(test)}
        for part in parts:
            if not first[part.name] - still:
                continue
            print(f"== {part.name}: again, what failed", flush=True)
            again = Part(part.name, ("--last-failed", "--last-failed-no-failures=none", *part.arguments), part.python)
            status = self._alone(again, place)
            left = outcome.failures(place / part.name)
            through = status in {outcome.OK, outcome.FAILED} and bool(left) == (status == outcome.FAILED)
            still |= left if through else first[part.name]
        return still

    def _alone(self, part: Part, place: Path) -> int:
        with self._started(part, place, shown=True) as process:
            return process.popen.wait()

    def _all(self, parts: Sequence[Part], place: Path) -> dict[str, int]:
        """Runs the parts in their order and returns pytest's exit statuses by name."""
        shown = self.at_once == 1 or len(parts) == 1
        waiting, running, statuses = deque(parts), list[_Process](), dict[str, int]()
        with contextlib.ExitStack() as stack:
            while waiting or running:
                while waiting and len(running) < self.at_once:
                    running.append(stack.enter_context(self._started(waiting.popleft(), place, shown=shown)))
                for process in [p for p in running if p.popen.poll() is not None]:
                    running.remove(process)
                    statuses[process.part.name] = process.popen.returncode
                    self._report(process)
                time.sleep(_POLL_S)
        return statuses

    def _report(self, process: _Process) -> None:
        if process.output is None:
            return
        text = process.output.read_text(errors="replace")
        self.total += outcome.counts(text)
        self._books = outcome.books([self._books, text])
        seconds = time.monotonic() - process.start
        print(f"{text}== {process.part.name}: {seconds:.0f} s, status {process.popen.returncode}", flush=True)

    @contextlib.contextmanager
    def _started(self, part: Part, place: Path, *, shown: bool) -> Iterator[_Process]:
        """Starts pytest. At the end of the block a pytest that still runs is interrupted, and so tidies up."""
        command = [*part.python, *part.arguments, "-o", f"cache_dir={place / part.name}"]
        output = None if shown else place / f"{part.name}.out"
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(output.open("wb")) if output else None
            # in a session of its own: a signal to the whole group would end pytest before it has tidied up
            popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                start_new_session=True,
                stdout=file,
                stderr=subprocess.STDOUT if file else None,
            )
        process = _Process(part, popen, output)
        try:
            yield process
        finally:
            _end(process)


def _flat(tests: Mapping[str, set[str]]) -> set[str]:
    return set[str]().union(*tests.values())


def _end(process: _Process) -> None:
    popen = process.popen
    if popen.poll() is not None:
        return
    with uninterrupted():
        popen.send_signal(signal.SIGINT)
        try:
            popen.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
        if process.output:
            print(process.output.read_text(errors="replace"), end="", flush=True)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM during the block."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
