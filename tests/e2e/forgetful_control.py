"""The control role as a process that forgets to note one `forward_table` in a program's book."""

from __future__ import annotations

import sys
from typing import Any

from tartlet_common.config.settings import ControlSettings
from tartlet_common.process.role import run_role
from tartlet_control.app import main
from tartlet_control.calls.tables import ForwardTable
from tartlet_control.rebuild import notes

FORGOTTEN = 10
"""The number of the one that is forgotten, of all that this process notes."""


def forget() -> None:
    """Makes this process forget. Folds note commands in the same way, but later, so they forget nothing."""
    note, seen = notes._NOTES[ForwardTable], 0

    def forgetful(book: Any, command: Any, outcome: Any) -> None:
        nonlocal seen
        seen += 1
        if seen != FORGOTTEN:
            note(book, command, outcome)

    notes._NOTES[ForwardTable] = forgetful


if __name__ == "__main__":
    forget()
    sys.exit(run_role("control", ControlSettings, main))
