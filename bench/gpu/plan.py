"""The steps of the proof and their time limits. Imports the standard library alone, as the runner does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a function `run` of a module below `bench.gpu.steps`, in a process of its own."""

    name: str
    module: str
    limit_s: int
    about: str
    needs_kernels: bool = False
    """Whether the step is about FlashInfer, whose modules may still be built."""


STEPS: Final = (
    Step("preflight", "preflight", 40, "versions, the card, rates of copies and products, one Triton kernel"),
    Step("tests", "suites", 80, "the tests that need a card, by gathered pages and by Triton's kernels"),
    Step("weights", "weights", 40, "checkpoints of the 1B and 8B shapes with random weights"),
    Step("baseline", "baseline", 30, "the bare loop without graphs, batch 1 and 32"),
    Step(
        "flashinfer",
        "flashinfer",
        45,
        "FlashInfer: import, kernels, results against gathered pages",
        needs_kernels=True,
    ),
    Step("graphs", "graphs", 45, "capture all graphs; replays against eager steps; what graphs hold"),
    Step("decode", "decode", 80, "milliseconds of a decode step for each path, batch and shape"),
    Step("programs", "programs", 120, "time a token through core-Wasm programs over the bare loop"),
    Step("policies", "policies", 70, "batching policies under load (Pie, Table 5)"),
    Step("swap", "swap", 15, "swapping contexts to the host"),
    Step("claims", "claims", 35, "memory that estimates must know of, and bits that may not depend on the batch"),
)
TOTAL_S: Final = 600
"""The whole run ends within this time; what doesn't fit is skipped, with this reason."""
LEAST_S: Final = 5
"""A step isn't started with less time left."""
REHEARSAL: Final = 12
"""How many times as long a rehearsal may take: the interpreter of Triton is slow, and so is a busy machine."""


def limit_of(step: Step, elapsed_s: float, total_s: float = TOTAL_S, times: int = 1) -> float:
    """Return how long a step may take, 0 if it shouldn't start; `times` stretches its own limit.

    Example:
        >>> limit_of(STEPS[0], 0.0), limit_of(STEPS[0], 590.0), limit_of(STEPS[0], 597.0)
        (40, 10.0, 0.0)
    """
    left = total_s - elapsed_s
    return 0.0 if left < LEAST_S else min(times * step.limit_s, left)
