"""Takes control's grammars to an engine, and the outcomes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from tartlet_common.errors.registry import TartletError, UnsupportedTrait
from tartlet_common.rpc.error_proto import error_to_proto
from tartlet_protos import engine_pb2
from tartlet_worker.engine import Engine
from tartlet_worker.grammar.optional import TRAIT


class GrammarDesk:
    """The grammars of the current link with control. The event loop's thread calls everything."""

    def __init__(
        self, engine: Engine, afterwards: Callable[[Callable[[], None]], None], told: Callable[[], None]
    ) -> None:
        """Make a desk.

        Args:
            engine: the engine whose samples name the grammars.
            afterwards: has the engine's thread call something behind the steps that are queued.
            told: called when there are reports to take.
        """
        self._grammars = engine.grammars
        self._model = engine.spec.model
        self._afterwards, self._told = afterwards, told
        self._loop = asyncio.get_running_loop()
        self._link = 0
        self._reports: list[engine_pb2.GrammarReport] = []

    def begin_link(self, link: int) -> None:
        """Forget everything: numbers of grammars belong to one link."""
        self._link = link
        self._reports.clear()
        if self._grammars is not None:
            self._grammars.reset()

    def take(self, frames: Iterable[engine_pb2.GrammarFrame]) -> None:
        """Begin to compile grammars, or forget some behind the steps that came before."""
        link = self._link

        def done(number: int, error: TartletError | None) -> None:
            self._loop.call_soon_threadsafe(self._report, link, number, error)

        for frame in frames:
            number, grammars = frame.number, self._grammars
            if grammars is None:
                if frame.kind:
                    self._report(link, number, UnsupportedTrait(model=self._model, trait=TRAIT))
            elif frame.kind:
                grammars.define(number, frame.kind, frame.text, done)
            else:
                self._afterwards(partial(grammars.forget, number))

    def _report(self, link: int, number: int, error: TartletError | None) -> None:
        if link != self._link:
            return
        report = engine_pb2.GrammarReport(number=number)
        if error is not None:
            report.error.CopyFrom(error_to_proto(error))
        self._reports.append(report)
        self._told()

    def reports(self) -> list[engine_pb2.GrammarReport]:
        """Return the outcomes since the last call."""
        taken, self._reports = self._reports, []
        return taken
