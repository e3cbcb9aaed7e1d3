"""Starts the children of programs at this runtime, and finds them wherever they run by now."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from tartlet_common.capabilities import check_shared
from tartlet_common.errors.registry import NotAllowed, ProgramKilled, TartletError, UnknownProgram
from tartlet_common.rpc.tenancy import Scope
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.children.asked import Asked, key_of, seed_of, sending_key, within
from tartlet_runtime.children.child_ops import Stream
from tartlet_runtime.program.driver import Driver
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import ProgramSpec, State
from tartlet_runtime.serving.calls import Call
from tartlet_runtime.serving.launching import Launching
from tartlet_runtime.serving.programs import ProgramTable
from tartlet_runtime.serving.relay import Relay
from tartlet_runtime.serving.server import hear

_LEAST_S: Final = 1e-3
"""The deadline of a child whose parent's deadline passes just now."""
_NATIVE: Final = common_pb2.Source.NATIVE


class Births:
    """Children of this runtime's programs."""

    def __init__(
        self,
        table: ProgramTable,
        driver: Driver,
        launching: Launching,
        relay: Relay,
        spawn: Callable[[Coroutine[Any, Any, None]], Any],
    ) -> None:
        """Take the parts that launches and calls need. `spawn` owns the tasks."""
        self._table = table
        self._driver = driver
        self._launching = launching
        self._relay = relay
        self._spawn = spawn

    def check(self, parent: Program, asked: Asked) -> None:
        """Check that a program may start another one.

        Raises:
            NotAllowed: its grants don't name that one, or it is a native program, and its source is in no catalogue.
        """
        check_shared(parent.grants, "spawn", asked.inferlet or parent.spec.name)  # control may not know the parent
        if not asked.inferlet and parent.spec.language == _NATIVE:
            raise NotAllowed(what="its own source for a child outside the sandbox", remedy="Name an inferlet.")

    def launch(self, parent: Program, asked: Asked, ticket: int) -> Stream:
        """Start a child. Its key names the parent, the parent's run and the ticket, so it starts once."""
        spec = parent.spec
        launch = programs_pb2.LaunchSpec(
            inferlet=asked.inferlet,
            args=asked.args,
            model=asked.model,
            limits=common_pb2.Limits(**asked.limits),
            tenant=spec.tenant,
            pool=spec.pool,
            idempotency_key=key_of(spec.program_id, spec.seed, ticket),
            attach=True,
            durable=spec.durable,
            durability=("degrade" if spec.degrades else "on") if spec.durable else "",
            seed=seed_of(spec.seed, ticket),
            trace=spec.trace,
        )
        if spec.session:
            launch.session.CopyFrom(common_pb2.Session(id=spec.session, parent=spec.parent_session))
        if not asked.inferlet:
            source = common_pb2.Source(language=spec.language, filename=spec.filename, data=spec.source)  # type: ignore[arg-type]
            launch.source.CopyFrom(source)

        def born(child: ProgramSpec, has_entry: bool) -> ProgramSpec:  # noqa: FBT001 - of one caller
            return self._born(parent, asked, child, has_entry=has_entry)

        call = Call(self._driver, expected=1, asked_s=self._table.now_s)
        self._spawn(self._launching.child(launch, call, spec.limits, born))
        return call

    def _born(self, parent: Program, asked: Asked, child: ProgramSpec, *, has_entry: bool) -> ProgramSpec:
        """Return a child's launch, with what it has of its parent."""
        has = parent.spec.limits
        left_s = 0.0
        if has.deadline_s:
            left_s = max(_LEAST_S, has.deadline_s - (self._table.now_s - parent.usage.launched_s))
        return replace(
            child,
            name=asked.inferlet or parent.spec.name,
            model=child.model or parent.spec.model,
            grants=(*parent.grants, *(child.grants if has_entry else ())),
            limits=replace(child.limits, **within(child.limits, has, left_s, asked.children)),
            parent=parent.program_id,
            detached=asked.detached,
        )

    def follow(self, parent: Program, program_id: str, offset: int) -> Stream:
        """Read a program's output from an offset on, here or at the runtime that control names."""
        call = Call(self._driver, expected=1, asked_s=self._table.now_s)
        scope = Scope(parent.spec.tenant)
        program = self._table.known(program_id, scope)
        if program is not None:
            call.accept(0, program_id)
            call.watch(program.output, 0, offset)
        else:
            self._relay.attach(call, [(0, programs_pb2.AttachTo(program_id=program_id, offset=offset))], scope)
        return call

    async def send(self, parent: Program, program_id: str, message: bytes, ticket: int) -> None:
        """Send a message to a child.

        Raises:
            UnknownProgram, InboxFull, FrameTooLarge, Unavailable: as `Send` answers a client.
        """
        key = sending_key(parent.program_id, parent.spec.seed, ticket)
        item = programs_pb2.SendItem(program_id=program_id, message=message, key=key)
        scope = Scope(parent.spec.tenant)
        program = self._table.known(program_id, scope)
        error: TartletError | None
        if program is None:
            (error,) = await self._relay.send([item], scope)
        elif program.state >= State.ENDING and not (program.goes_on or program.mail.knows(key)):
            error = UnknownProgram(program=f"{program_id}: it has ended")
        else:
            error = (await hear({0: program}, [item])).get(0)
        if error is not None:
            raise error

    async def kill(self, parent: Program, program_id: str, reason: str) -> None:
        """End a child.

        Raises:
            UnknownProgram, Unavailable: as `Kill` answers a client.
        """
        scope = Scope(parent.spec.tenant)
        program = self._table.known(program_id, scope)
        if program is not None:
            program.end(ProgramKilled(reason=reason or "by its parent"))
            return
        (error,) = await self._relay.kill([program_id], reason, scope)
        if error is not None:
            raise error
