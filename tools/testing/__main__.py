"""`python -m tools.testing [ARGUMENT...]`: all tests but the cluster's and the soaks, two processes at a time.

Arguments are pytest's. Where they name tests, one pytest runs these, and nothing runs twice.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from tools.testing.parts import names_tests, parts, usual
from tools.testing.runs import Part, Runner

AT_ONCE = 2
"""A third process would be in the way of clocks that tests watch, on two cores."""


def main(arguments: list[str]) -> int:
    """Runs the tests and returns pytest's exit status."""
    if names_tests(arguments):
        os.execv(sys.executable, [*Part("", ()).python, *usual(arguments)])  # noqa: S606 - pytest takes this process over
    return Runner(AT_ONCE).run(parts(arguments))


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # ends pytests in order, as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has background commands ignore SIGINT
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
