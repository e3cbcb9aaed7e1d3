"""The `Engine` protocol, which every backend implements.

An engine owns weights, KV pages, embeds and token slots, in pools whose sizes are fixed at its start. Control decides
who owns a page and in which order commands run. The engine executes the batches of a `Step` one after the other and
answers every command. A command at fault gets `Status.FAILED` with an error number, and the later commands of its lane
are refused; the other commands run. An engine raises only if the engine itself is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tartlet_common.engine.spec import AdapterSpec, EngineSpec
from tartlet_common.engine.step import Step, StepResult

if TYPE_CHECKING:
    from tartlet_worker.grammar.grammars import Grammars


def ignore_computing() -> None:
    """No-op callback."""


Following = Callable[[Callable[[], bool]], Step | None]
"""Waits for the step behind the one that runs, until the given function says that there is no time left. None: there
is none yet. After a step was returned, that step must be the engine's next."""


def nothing_follows(_: Callable[[], bool]) -> None:
    """Return no step."""


class CheckedAdapter(Protocol):
    """An adapter whose files were read, and that fits the model."""

    @property
    def spec(self) -> AdapterSpec:
        """Its name, digest and rank."""


class LiveAdapters(Protocol):
    """The LoRA adapters of an engine that come and go while it runs."""

    def check(self, name: str, path: Path) -> CheckedAdapter:
        """Read an adapter's files. Any thread may call this.

        Raises:
            AdapterRefused: they hold no adapter of this model, or one that isn't served.
        """

    def load(self, checked: Any) -> Callable[[], None]:
        """Bring a checked adapter onto the device. Any thread may call this.

        Returns what the engine's thread calls between two steps; then commands may name the adapter.

        Raises:
            AdapterRefused: the device has no room for it, or its files have changed.
        """

    def remove(self, number: int) -> None:
        """Forget an adapter. The engine's thread calls this between two steps."""


class Engine(Protocol):
    """A model with its pools on one device."""

    @property
    def spec(self) -> EngineSpec:
        """Facts for Hello; constant over the engine's life. Adapters that come and go are not in it."""

    @property
    def adapters(self) -> LiveAdapters | None:
        """The adapters that come and go; None: those of `spec` are all that there ever are."""

    @property
    def grammars(self) -> Grammars | None:
        """The grammars that samples may name, which any thread may define; None: samples can't follow grammars."""

    def tokenizer_json(self) -> bytes:
        """Return the checkpoint's tokenizer.json, b"" if it has none."""

    def step(
        self, step: Step, computing: Callable[[], None] = ignore_computing, following: Following = nothing_follows
    ) -> StepResult:
        """Run a step to its end. All calls come from one thread.

        Args:
            step: the batches to run.
            computing: called when the device has begun to compute and this thread hardly needs the interpreter. A step
                may end without calling it.
            following: asked for the next step while the device computes this one, at most once. An engine may begin
                the next step on the device before it reads the results of this one. An error of the next step is
                raised by the call that runs the next step.
        """

    def reset(self, keep: Sequence[int] = ()) -> None:
        """Forget all pages but those in `keep`, all tables, embeds, slots and poisoned lanes.

        A worker calls this when it connects to control.
        """
