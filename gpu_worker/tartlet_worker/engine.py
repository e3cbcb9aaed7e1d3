"""The `Engine` protocol: the one thing a backend implements (architecture, "inference").

An engine owns weights, KV pages, embeds and token slots in pools sized at start. It decides neither who owns a page nor
in which order commands run: it executes a `Step`'s batches one after the other and answers each command. It never
raises for a command's fault: such a command gets `Status.FAILED` with an error number and the rest of its lane is
refused; other commands are untouched. It raises only when the engine itself is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import Step, StepResult


def nobody() -> None:
    """Wants to know nothing."""


class Engine(Protocol):
    """A model with its pools on one device."""

    @property
    def spec(self) -> EngineSpec:
        """Facts for Hello; constant over the engine's life."""

    def tokenizer_json(self) -> bytes:
        """The checkpoint's tokenizer.json, b"" if it has none."""

    def step(self, step: Step, computing: Callable[[], None] = nobody) -> StepResult:
        """Run a step to its end. Called from one thread only.

        Args:
            step: what is to be done.
            computing: called when the device has begun to compute and this thread needs little, if that happens.
        """

    def reset(self) -> None:
        """Forget all pages, embeds, slots and poisoned lanes, as if just started (a new control has taken over)."""
