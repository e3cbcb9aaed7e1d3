"""What has changed of engines and programs since a watcher was last told, found without looking at all of each one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tartlet_common.engine.pools import Reach
from tartlet_common.rpc.tenancy import Scope
from tartlet_control.core.core import Core
from tartlet_control.serving.state import doing, engine_state, program_state
from tartlet_control.serving.watching.steps import Steps
from tartlet_control.tables.engines import EngineState
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.programs import ProgramState
from tartlet_protos import control_pb2

MOST: Final = 3000
"""Programs that a watcher is told of: the newest."""
CHUNK: Final = 200
"""Programs that are compared before control goes on with its own work: about 0.2 ms."""

T = TypeVar("T")


class Changes:
    """The state as one watcher knows it.

    A program is compared by counters that change with everything that is shown, so that a program at rest costs less
    than a microsecond.
    """

    def __init__(self, core: Core, scope: Scope, steps: Mapping[str, Steps] | None = None) -> None:
        """Begin with a watcher who knows nothing. `steps`: the latest of each engine, by its id."""
        self._core = core
        self._steps = {} if steps is None else steps
        self._scope = scope
        self._reach = None if scope.tenant is None else Reach(scope.tenant)
        self._engines: dict[str, Hashable] = {}
        self._programs: dict[str, Hashable] = {}
        self._totals: dict[str, int] = {}
        self._whole = True

    async def next(self) -> control_pb2.StateChange | None:
        """Return what has changed since the last call, everything at the first one; None: nothing has."""
        core, told = self._core, self._totals
        engines, engines_gone = await _compared(self._engines, self._seen(), _engine_mark, self._engine)
        shown = [p for p in core.lifecycle.programs.values() if self._scope.allows(p.tenant)]
        now = core.clock.now()
        programs, programs_gone = await _compared(
            self._programs, ((p.id, p) for p in shown[-MOST:]), _program_mark, lambda p: program_state(p, now, 0)
        )
        totals = {"programs": len(shown), "programs_left_out": max(0, len(shown) - MOST), "leaks": core.leaks}
        if not (self._whole or engines or programs or engines_gone or programs_gone or totals != told):
            return None
        whole, self._whole, self._totals = self._whole, False, totals
        text = {"incarnation": core.incarnation, "engines": engines, "programs": programs, "totals": totals}
        return control_pb2.StateChange(
            json=json.dumps(text), engines_gone=engines_gone, programs_gone=programs_gone, whole=whole
        )

    def _engine(self, engine: EngineState) -> dict[str, Any]:
        return engine_state(engine, self._core) | {"recent_steps": list(self._steps.get(engine.id, ()))}

    def _seen(self) -> list[tuple[str, EngineState]]:
        engines = self._core.engines.values()
        return [(e.id, e) for e in engines if self._reach is None or self._reach.rank(e.home) is not None]


async def _compared(
    known: dict[str, Hashable], items: Iterable[tuple[str, T]], mark: Callable[[T], Hashable], show: Callable[[T], Any]
) -> tuple[list[Any], list[str]]:
    """Note the items in `known`, and return those that are new or changed, and the ids of those that are gone."""
    changed: list[Any] = []
    gone = set(known)
    for at, (name, item) in enumerate(list(items), 1):
        gone.discard(name)
        now = mark(item)
        if known.get(name) != now:
            known[name] = now
            changed.append(show(item))
        if at % CHUNK == 0:
            await asyncio.sleep(0)
    for name in gone:
        del known[name]
    return changed, sorted(gone)


def _program_mark(p: ProgramState) -> Hashable:
    return p.commands, p.sampled_tokens, p.computed_tokens, p.num_pages, p.in_flight, doing(p)


def _engine_mark(e: EngineState) -> Hashable:
    return e.status, e.gone_since, e.steps, len(e.program_ids), e.pools[PAGES].num_free, e.pools[PAGES].num_held
