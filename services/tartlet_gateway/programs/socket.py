"""Programs over a WebSocket: one connection launches or attaches, reads events, sends messages and ends the program."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

import tartlet
from tartlet_common.errors.registry import TartletError
from tartlet_gateway.http.exchange import GOING_AWAY, WRITE_S, ClientGoneError
from tartlet_gateway.http.subprotocol import chosen
from tartlet_gateway.openai.bodies import decoded
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.programs.errors import TypedError
from tartlet_gateway.programs.following import MAX_OFFSET
from tartlet_gateway.programs.requests import Launch, Message
from tartlet_gateway.programs.values import event_value
from tartlet_gateway.runs.backends import Backends
from tartlet_gateway.runs.caller import Caller, caller_of
from tartlet_gateway.runs.sessions import BadSessionError


class LaunchFrame(msgspec.Struct, tag_field="type", tag="launch", forbid_unknown_fields=True):
    """The first frame: launch a program. It ends with the connection if `tied`."""

    program: Launch


class AttachFrame(msgspec.Struct, tag_field="type", tag="attach", forbid_unknown_fields=True):
    """The first frame: follow a program from an offset on."""

    id: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)] = 0


class SendFrame(Message, tag_field="type", tag="send", kw_only=True):
    """A later frame: send a message to the program."""


class KillFrame(msgspec.Struct, tag_field="type", tag="kill", forbid_unknown_fields=True):
    """A later frame: end the program."""

    reason: str = ""


_Frame = LaunchFrame | AttachFrame | SendFrame | KillFrame
_decoder: Final = msgspec.json.Decoder(_Frame)


class Socket:
    """The ASGI endpoint of the WebSocket. An error is a frame, and the connection lives on."""

    def __init__(self, backends: Backends, stopped: asyncio.Event) -> None:
        self._backends = backends
        self._stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        caller = caller_of(scope)
        caller.ended = partial(self._backends.lasting.ended, caller.tenant)
        connection = _Connection(self._backends, caller, scope, receive, send)
        serving = asyncio.ensure_future(connection.serve())
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            else:
                await send({"type": "websocket.close", "code": GOING_AWAY})
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)


class _Connection:
    """One connection and the program that it follows, once there is one."""

    def __init__(self, backends: Backends, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._client = backends.of(caller).client
        self._lasting = backends.lasting
        self._caller = caller
        self._receive = receive
        self._send = send
        self._run: tartlet.Run | None = None
        self._following: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Take frames until the client goes away or the program has ended."""
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": chosen(self._scope)})
        try:
            while True:
                reading = asyncio.ensure_future(self._receive())
                waiting = {reading} if self._following is None else {reading, self._following}
                try:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not reading.done():
                        reading.cancel()
                if self._following is not None and self._following.done():
                    self._following.result()
                    await self._send({"type": "websocket.close", "code": 1000})
                    return
                message = reading.result()
                if message["type"] == "websocket.disconnect":
                    return
                await self._take(message.get("text") or message.get("bytes") or "")
        except ClientGoneError:
            return
        finally:
            if self._run is not None:
                self._run.cancel()
            if self._following is not None:
                self._following.cancel()
                with suppress(asyncio.CancelledError, TartletError, ClientGoneError):
                    await self._following

    async def _take(self, text: str | bytes) -> None:
        try:
            await self._do(decoded(_decoder, text.encode() if isinstance(text, str) else text))
        except BadSessionError as e:
            await self._tell({"type": "error", **ApiError(400, str(e), param=e.param).body})
        except ApiError as e:
            await self._tell({"type": "error", **e.body})
        except TartletError as e:
            await self._tell({"type": "error", **TypedError(e).body})

    async def _do(self, frame: _Frame) -> None:
        match frame:
            case LaunchFrame() | AttachFrame() if self._run is not None:
                raise ApiError(400, "This connection follows a program already: open another.", param="type")
            case LaunchFrame():
                frame.program.stream = True
                self._follow(await self._launched(frame.program))
                await self._tell(event_value(tartlet.Accepted(self._caller.program_id)))
                self._start()
            case AttachFrame():
                self._follow(await self._client.attach(frame.id, frame.offset))
                self._start()
            case SendFrame() | KillFrame() if self._run is None:
                raise ApiError(400, "Launch a program or attach to one first.", param="type")
            case SendFrame():
                await self._client.send(self._caller.program_id, frame.message())
            case KillFrame():
                await self._client.kill(self._caller.program_id, frame.reason)

    async def _launched(self, program: Launch) -> tartlet.Run:
        spec = program.spec(program.in_session(self._scope["headers"], self._caller.tenant))
        self._caller.admit(spec.idempotency_key)
        if program.tied:
            return await self._client.run(spec=spec)
        accepted = await self._lasting.launch(self._client, self._caller, spec)
        return await self._client.attach(accepted.program_id)

    def _follow(self, run: tartlet.Run) -> None:
        self._run = run
        self._caller.program_id = run.program_id

    def _start(self) -> None:
        self._following = asyncio.ensure_future(self._events())

    async def _events(self) -> None:
        assert self._run is not None
        try:
            async for event in self._run:
                if isinstance(event, tartlet.Ended):
                    self._caller.saw_end(event)
                await self._tell(event_value(event))
        except TartletError as e:
            await self._tell({"type": "error", "program_id": self._run.program_id, **TypedError(e).body})

    async def _tell(self, value: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._send({"type": "websocket.send", "text": msgspec.json.encode(value).decode()})
        except (TimeoutError, OSError, RuntimeError) as e:  # RuntimeError: sent behind a close, as ASGI servers say it
            raise ClientGoneError from e
