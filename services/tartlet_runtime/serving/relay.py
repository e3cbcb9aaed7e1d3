"""Calls about programs of other runtimes, relayed to the runtime that control names.

A relayed call carries `tartlet-relayed` and isn't relayed again, so that stale addresses can't send it in circles.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from tartlet_common.errors.registry import (
    InternalError,
    RuntimeLost,
    Superseded,
    TartletError,
    Unavailable,
    UnknownProgram,
)
from tartlet_common.rpc.endpoints import CALL_ERRORS, Dialer, Tls
from tartlet_common.rpc.error_proto import error_from_proto, error_to_proto
from tartlet_common.rpc.tenancy import EVERYONE, Metadata, Scope
from tartlet_protos import control_pb2, programs_pb2, programs_pb2_grpc
from tartlet_runtime.serving.calls import Call
from tartlet_runtime.serving.listing import Place, make_token, read_token

log = logging.getLogger(__name__)

RELAYED: Metadata = (("tartlet-relayed", "1"),)
ANSWER_S = 5.0
"""How long another runtime may take to answer."""
_READ_S = 120.0
"""The same for a journal, behind those that others read."""
RETURN_S = 6.0
"""How long runtimes take at most to be back at a new control: somewhat more than it allows them itself."""
_ASK_AGAIN_S = 0.25
_PAUSES_S = (0.25, 0.5, 1.0, *(2.0,) * 30)
"""Pauses between questions for the next runtime of a program that was followed."""

_Event = programs_pb2.ProgramEvent
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
Ask = Callable[[Any, list[int]], Coroutine[Any, Any, Sequence[TartletError | None]]]
"""Asks a runtime's stub about the items of these places; an error or None for each."""


class Locator(Protocol):
    """Control, which knows where programs run."""

    async def locate(self, program_ids: Sequence[str], scope: Scope) -> control_pb2.LocateReply:
        """Raises `Unavailable` while control can't be reached."""


def is_relayed(context: grpc.aio.ServicerContext[Any, Any]) -> bool:
    """Return whether another runtime has sent this call."""
    return any(key == RELAYED[0][0] for key, _ in context.invocation_metadata() or ())


class Relay:
    """Connections to other runtimes, and calls over them."""

    def __init__(self, locator: Locator, address: str, tls: Tls | None, spawn: Spawn) -> None:
        """`address` is this runtime's own; `spawn` owns the tasks that follow programs elsewhere."""
        self._locator = locator
        self._address = address
        self._tls = tls
        self._spawn = spawn
        self._dialers: dict[str, Dialer] = {}
        self._in_use: Counter[str] = Counter()  # calls under way, by address
        self.is_here: Callable[[str], bool] = _nowhere
        """Whether this runtime has a program by now."""

    async def close(self) -> None:
        """Close the connections."""
        for dialer in self._dialers.values():
            await dialer.close()

    async def _owners(self, program_ids: Sequence[str], scope: Scope) -> list[str | TartletError]:
        """Return the address of each program's runtime, or the error that this caller gets."""
        try:
            reply = await self._locate(program_ids, scope)
        except TartletError as e:
            return [e] * len(program_ids)
        recovering = reply.recovering or [False] * len(program_ids)  # of a control of the last release
        return [
            self._owner(program_id, address, returning=reply.returning, recovering=is_recovering)
            for program_id, address, is_recovering in zip(program_ids, reply.addresses, recovering, strict=True)
        ]

    async def _locate(self, program_ids: Sequence[str], scope: Scope) -> control_pb2.LocateReply:
        """Ask control, again for a while if runtimes are still returning to a new control."""
        reply = await self._locator.locate(program_ids, scope)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETURN_S):
                while (reply.returning or any(reply.recovering)) and not all(reply.addresses):
                    await asyncio.sleep(_ASK_AGAIN_S)
                    reply = await self._locator.locate(program_ids, scope)
        return reply

    def _owner(self, program_id: str, address: str, *, returning: bool, recovering: bool) -> str | TartletError:
        what = f"the runtime of program {program_id[:64]}"
        if address and (address != self._address or self.is_here(program_id)):
            return address
        if recovering:
            return Unavailable(what=what, detail="it is gone, and another one is about to go on with the program")
        if returning and not address:
            return Unavailable(what=what, detail="control has just started, and doesn't know yet who has this program")
        return UnknownProgram(program=program_id[:64])

    async def ask(self, program_ids: Sequence[str], scope: Scope, ask: Ask) -> list[TartletError | None]:
        """Ask each program's runtime, each runtime once. Returns an error or None for each program."""
        silent = Unavailable(what="the program's runtime", detail="no answer")
        answers: list[TartletError | None] = [silent] * len(program_ids)
        groups: dict[str, list[int]] = defaultdict(list)
        for place, owner in enumerate(await self._owners(program_ids, scope)):
            if isinstance(owner, str):
                groups[owner].append(place)
            else:
                answers[place] = owner

        async def one(address: str, places: list[int]) -> None:
            try:
                with self._calling(address) as stub:
                    errors = await ask(stub, places)
            except grpc.RpcError as e:
                errors = [_unreachable(address, e)] * len(places)
                await self._hang_up(address)
            for place, error in zip(places, errors, strict=True):
                answers[place] = error

        async with asyncio.TaskGroup() as tasks:
            for address, places in groups.items():
                tasks.create_task(one(address, places))
        return answers

    async def send(self, items: Sequence[programs_pb2.SendItem], scope: Scope) -> list[TartletError | None]:
        """Send messages to programs at other runtimes."""

        async def ask(stub: Any, places: list[int]) -> list[TartletError | None]:
            request = programs_pb2.SendRequest(items=[items[i] for i in places])
            reply = await stub.Send(request, metadata=RELAYED + scope.metadata, timeout=ANSWER_S)
            return [error_from_proto(e) for e in reply.errors]

        return await self.ask([i.program_id for i in items], scope, ask)

    async def kill(self, program_ids: Sequence[str], reason: str, scope: Scope) -> list[TartletError | None]:
        """End programs at other runtimes."""

        async def ask(stub: Any, places: list[int]) -> list[TartletError | None]:
            request = programs_pb2.KillRequest(program_ids=[program_ids[i] for i in places], reason=reason)
            reply = await stub.Kill(request, metadata=RELAYED + scope.metadata, timeout=ANSWER_S)
            return [error_from_proto(e) for e in reply.errors]

        return await self.ask(program_ids, scope, ask)

    async def read_journal(
        self, request: programs_pb2.ReadJournalRequest, scope: Scope
    ) -> programs_pb2.ReadJournalReply:
        """Return turns of a recorded run from its program's runtime.

        Raises:
            UnknownProgram, Unavailable: no runtime has the program, or it can't be reached.
        """
        (owner,) = await self._owners([request.program_id], scope)
        if isinstance(owner, TartletError):
            raise owner
        try:
            with self._calling(owner) as stub:
                reply = await stub.ReadJournal(request, metadata=RELAYED + scope.metadata, timeout=_READ_S)
        except grpc.RpcError as e:
            raise _unreachable(owner, e) from e
        assert isinstance(reply, programs_pb2.ReadJournalReply)
        return reply

    async def leave(self, items: Sequence[programs_pb2.LeaveItem], scope: Scope) -> None:
        """Tell other runtimes that the client of these programs won't come back."""

        async def ask(stub: Any, places: list[int]) -> list[TartletError | None]:
            request = programs_pb2.LeaveRequest(items=[items[i] for i in places])
            await stub.Leave(request, metadata=RELAYED + scope.metadata, timeout=ANSWER_S)
            return [None] * len(places)

        await self.ask([i.program_id for i in items], scope, ask)

    async def list(
        self, asked: programs_pb2.ListRequest, places: Mapping[str, Place | None], scope: Scope
    ) -> tuple[programs_pb2.ListReply, dict[str, Place]]:
        """Return a page of other runtimes' programs behind these places, and the places where the next page begins."""
        merged, more = programs_pb2.ListReply(), {}

        async def one(address: str, place: Place | None) -> tuple[programs_pb2.ListReply, Place | None]:
            request = programs_pb2.ListRequest(page_token="" if place is None else make_token({address: place}))
            request.MergeFrom(asked)
            try:
                with self._calling(address) as stub:
                    reply = await stub.List(request, metadata=RELAYED + scope.metadata, timeout=ANSWER_S)
                return reply, (read_token(reply.next_page_token) or {}).get(address)
            except (grpc.RpcError, TartletError):
                return programs_pb2.ListReply(unreachable=[address]), None

        answers = await asyncio.gather(*(one(address, place) for address, place in places.items()))
        for address, (reply, place) in zip(places, answers, strict=True):
            merged.programs.extend(reply.programs)
            merged.unreachable.extend(reply.unreachable)
            if place is not None:
                more[address] = place
        return merged, more

    # ---- following ----

    def attach(self, call: Call, wanted: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope) -> None:
        """Let `call` follow programs at other runtimes, with those runtimes' answers."""
        call.relays.add(self._spawn(self._attach(call, wanted, scope)))

    async def _attach(self, call: Call, wanted: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope) -> None:
        groups: dict[str, list[tuple[int, programs_pb2.AttachTo]]] = defaultdict(list)
        owners = await self._owners([w.program_id for _, w in wanted], scope)
        for (index, program), owner in zip(wanted, owners, strict=True):
            if isinstance(owner, str):
                groups[owner].append((index, program))
            else:
                call.reject(index, owner)
        for address, group in groups.items():
            call.relays.add(self._spawn(self._follow(call, address, group, scope)))

    def refuse(self, call: Call, wanted: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope) -> None:
        """Answer another runtime that follows programs which aren't here: they may be on their way to a runtime."""
        call.relays.add(self._spawn(self._refuse(call, wanted, scope)))

    async def _refuse(self, call: Call, wanted: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope) -> None:
        owners = await self._owners([program.program_id for _, program in wanted], scope)
        for (index, program), owner in zip(wanted, owners, strict=True):
            moved = Unavailable(what=f"program {program.program_id[:64]}", detail="it has another runtime now")
            call.reject(index, moved if isinstance(owner, str) else owner)

    def join(self, call: Call, index: int, program_id: str) -> None:
        """Let `call`, which has answered `index` already, follow a program elsewhere."""
        call.relays.add(self._spawn(self._join(call, index, program_id)))

    async def _join(self, call: Call, index: int, program_id: str) -> None:
        wanted = [(index, programs_pb2.AttachTo(program_id=program_id))]
        (owner,) = await self._owners([program_id], EVERYONE)  # a key names programs of its own tenant only
        if isinstance(owner, str):
            await self._follow(call, owner, wanted, EVERYONE)
        elif isinstance(owner, Unavailable):  # it may be recovering
            await self._follow_on(call, wanted, EVERYONE)
        else:
            await call.relay([_end(index, program_id, 0, owner)])

    async def _follow(
        self, call: Call, address: str, group: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope
    ) -> None:
        with self._calling(address) as stub:
            left = await self._read(stub, call, address, group, scope)
        if left:
            await self._follow_on(call, left, scope)

    async def _follow_on(self, call: Call, left: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope) -> None:
        """Follow programs to their next runtimes; end those that have none."""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            owners = await self._owners([program.program_id for _, program in left], scope)
            waiting = []
            for (index, program), owner in zip(left, owners, strict=True):
                if isinstance(owner, str):
                    call.relays.add(self._spawn(self._follow(call, owner, [(index, program)], scope)))
                elif isinstance(owner, Unavailable):
                    waiting.append((index, program))
                else:
                    await call.relay([_end(index, program.program_id, program.offset, RuntimeLost())])
            left = waiting
            if not left:
                return
        await call.relay([_end(index, program.program_id, program.offset, RuntimeLost()) for index, program in left])

    async def _read(
        self, stub: Any, call: Call, address: str, group: Sequence[tuple[int, programs_pb2.AttachTo]], scope: Scope
    ) -> Sequence[tuple[int, programs_pb2.AttachTo]]:
        """Read another runtime's Attach stream into `call`. Returns the programs that haven't ended when it ends."""
        open_: dict[int, int] = {index: program.offset for index, program in group}  # index -> next offset
        moved: set[int] = set()
        stream = stub.Attach(
            programs_pb2.AttachRequest(programs=[program for _, program in group]), metadata=RELAYED + scope.metadata
        )
        error: TartletError = RuntimeLost()
        try:
            limit_s: float | None = ANSWER_S
            while True:
                async with asyncio.timeout(limit_s):
                    message = await stream.read()
                limit_s = None
                if not isinstance(message, programs_pb2.ProgramEvents):  # the end
                    break
                events = _taken(call, message.events, group, open_, moved)
                if events:
                    await call.relay(events)
        except (*CALL_ERRORS, TimeoutError) as e:
            error = _unreachable(address, e)
            self._spawn(self._hang_up(address))
        except Exception as e:  # events that make no sense: whoever waits for these programs is told all the same
            log.exception("the runtime at %s sent events that can't be used", address)
            error = InternalError(detail=repr(e))
        finally:
            stream.cancel()
        left, ends = [], []
        for index, program in group:
            rejected = _Event(kind=_Event.REJECTED, error=error_to_proto(error))
            if index not in open_ or call.answer_if_open(index, rejected):
                continue
            offset = open_[index]
            if index in moved or isinstance(error, Unavailable):
                program.offset = offset
                left.append((index, program))
            else:
                ends.append(_end(index, program.program_id, offset, RuntimeLost()))
        if ends:
            await call.relay(ends)
        return left

    @contextlib.contextmanager
    def _calling(self, address: str) -> Iterator[Any]:
        """Give a stub for a call; its connection stays open until the call has ended."""
        self._in_use[address] += 1
        try:
            yield self._stub(address)
        finally:
            self._in_use[address] -= 1
            if not self._in_use[address]:
                del self._in_use[address]

    def _stub(self, address: str) -> Any:
        if address not in self._dialers:
            self._dialers[address] = Dialer(address, self._tls, role="runtime")
        return programs_pb2_grpc.ProgramsStub(self._dialers[address].current())

    async def _hang_up(self, address: str) -> None:
        """Close a failed connection; the next call makes a new one."""
        dialer = self._dialers.get(address)
        if dialer is not None and dialer.channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._dialers.pop(address).leave()

    async def drop_all_but(self, runtimes: Sequence[str]) -> None:
        """Close connections to runtimes that control no longer names, unless a call uses them."""
        for address in self._dialers.keys() - set(runtimes) - self._in_use.keys():
            self._dialers.pop(address).leave()


def _nowhere(program_id: str) -> bool:
    """Return False until `app` wires the table of programs."""
    return False


def _taken(
    call: Call,
    events: Iterable[programs_pb2.ProgramEvent],
    group: Sequence[tuple[int, programs_pb2.AttachTo]],
    open_: dict[int, int],
    moved: set[int],
) -> list[programs_pb2.ProgramEvent]:
    """Answer `call` with another runtime's answers, and return the events to relay.

    Programs that have ended, or that nobody has, leave `open_`: the next offset of each program by index. Those that go
    on at another runtime are added to `moved`.
    """
    taken = []
    for event in events:
        event.index, program = group[event.index]
        index, error = event.index, error_from_proto(event.error)
        if event.kind == _Event.ACCEPTED:
            call.answer_if_open(index, event)
        elif event.kind == _Event.REJECTED:
            if call.has_answered(index) and isinstance(error, Unavailable):
                moved.add(index)
                continue
            del open_[index]
            if not call.answer_if_open(index, event):
                taken.append(_end(index, program.program_id, 0, error or RuntimeLost()))
        elif event.kind == _Event.ENDED and isinstance(error, Superseded):
            moved.add(index)
        else:
            open_[index] = event.offset + 1
            taken.append(event)
            if event.kind == _Event.ENDED:
                del open_[index]
    return taken


def _end(index: int, program_id: str, offset: int, error: TartletError) -> programs_pb2.ProgramEvent:
    return _Event(index=index, program_id=program_id, kind=_Event.ENDED, offset=offset, error=error_to_proto(error))


def _unreachable(address: str, error: BaseException) -> Unavailable:
    code = getattr(error, "code", None)
    return Unavailable(what=f"the runtime at {address}", detail=code().name if callable(code) else repr(error))
