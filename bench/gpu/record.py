"""What a step of the proof has learnt, as a JSON file that is whole whenever the step ends."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn


class Skip(Exception):
    """A step can't run here; the text is the reason."""


class Missing(Exception):
    """A step lacks what the proof is to prove; the text says what."""


@dataclass
class Record:
    """What a step has learnt so far, in a file that is always whole."""

    step: str
    out: Path
    rehearse: bool
    without_flashinfer: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """torch's name of the device."""
        return "cpu" if self.rehearse else "cuda"

    @property
    def scratch(self) -> Path:
        """A directory that all steps share."""
        return Path(os.environ.get("TARTLET_GPU_SCRATCH", str(self.out)))

    def note(self, **values: Any) -> None:
        """Add values and write the file."""
        self.data |= values
        self.write("running")

    def expect(self, fact: bool, what: str) -> None:  # noqa: FBT001 - reads as an assertion
        """Note a problem, which makes the step fail at its end, if `fact` is false."""
        if not fact:
            self.problems.append(what)
            self.note(problems=self.problems)

    def lacks_flashinfer(self, what: str) -> NoReturn:
        """End the step, because something of FlashInfer isn't there.

        Raises:
            Skip: the run goes without FlashInfer.
            Missing: it doesn't, so the step fails.
        """
        if self.without_flashinfer:
            raise Skip(what)
        raise Missing(f"{what} (--without-flashinfer skips this step)")

    def write(self, outcome: str, **more: Any) -> None:
        """Write the file."""
        file = self.out / f"{self.step}.json"
        fresh = file.with_suffix(".new")
        fresh.write_text(
            json.dumps({"step": self.step, "outcome": outcome, "data": self.data, **more}, indent=1) + "\n"
        )
        fresh.replace(file)
