"""What a step of the simulated engine costs."""

from __future__ import annotations

from dataclasses import dataclass

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
