"""What a step of the simulated engine costs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from tartlet_control.simulation.load import Trace


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of a step, in seconds: a fixed part, and a part for each token that is decoded or prefilled."""

    fixed_s: float = 0.010
    decode_s: float = 0.0002
    prefill_s: float = 0.00005
    slots: int = 16
    """Calls that one step takes."""
    every: int = 8
    """Decode steps between two decisions of which calls run (Autellix 4.2.2, multi-step scheduling)."""

    memory_tokens: int = 0
    """Tokens whose keys and values an engine's memory has room for; 0: all."""
    swap_s: float = 0.0
    """Time that a token takes to host memory or back; 0: there is none, and what left is computed again."""

    @property
    def swaps(self) -> bool:
        """Whether tokens go to host memory, because that costs less than to compute them again."""
        return 0 < 2 * self.swap_s < self.prefill_s

    def step_s(self, decoding: int) -> float:
        """Return the time of a step that decodes for so many calls."""
        return self.fixed_s + self.decode_s * decoding

    def served_s(self, trace: Trace) -> float:
        """Return the device time that a program needs if its steps are always full, as a share of these steps."""
        token_s = self.step_s(self.slots) / self.slots
        return sum(self.prefill_s * prefill + decode * token_s for wave in trace.waves for prefill, decode in wave)


UNIT = Costs(fixed_s=1.0, decode_s=0.0, prefill_s=0.0, slots=2, every=1)
"""Steps of one unit for two calls, as in the paper's Figure 2."""


def write(path: Path, costs: Costs) -> None:
    """Write costs to a file that `read` reads: a JSON object with the attributes of `Costs`, times in seconds."""
    path.write_text(json.dumps(asdict(costs), indent=1) + "\n")


def read(path: Path) -> Costs:
    """Read costs from a file; what the file doesn't name is as `Costs` has it.

    Raises:
        OSError: there is no such file.
        ValueError: it isn't of that form; the message names the file and what is wrong.
    """
    usual, least = asdict(Costs()), {"slots": 1, "every": 1}
    try:
        told = dict(json.loads(path.read_text()).items())
    except (ValueError, AttributeError) as e:
        raise ValueError(f"{path}: not a JSON object, as `tartlet bench orders --costs FILE` writes: {e}") from e
    if unknown := sorted(told.keys() - usual.keys()):
        raise ValueError(f"{path}: {', '.join(unknown)}: none of {', '.join(usual)}")
    for name, value in told.items():
        kinds = int if isinstance(usual[name], int) else (int, float)
        wrong = isinstance(value, bool) or not isinstance(value, kinds) or not isfinite(value)
        if wrong or value < least.get(name, 0) or (name == "fixed_s" and not value):
            raise ValueError(f"{path}: {name}: {value!r} is out of range, or no {type(usual[name]).__name__}")
    return Costs(**told)
