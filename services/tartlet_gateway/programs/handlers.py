"""What each operation on programs and on the catalogue does."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

import msgspec

import tartlet
from tartlet.watching import watch_program
from tartlet_common.errors.registry import UnknownProgram
from tartlet_gateway.programs.endpoint import Call
from tartlet_gateway.programs.following import encoded, follow, follow_calls, offset_of
from tartlet_gateway.programs.requests import Entry, Launch, Program, message_of, program_of
from tartlet_gateway.programs.values import end_value, entry_value, event_value, info_value
from tartlet_gateway.runs.sessions import own_session

MAX_WAIT_S: Final = 300.0
"""How long a request may wait for a program's end."""
MAX_TURN: Final = (1 << 31) - 1
MAX_TURNS: Final = 200
"""Turns of a journal in one reply."""
Answer = tuple[int, dict[str, Any]]

_LAUNCH: Final = msgspec.json.Decoder(Launch)
_ENTRY: Final = msgspec.json.Decoder(Entry)
_PROGRAM: Final = msgspec.json.Decoder(Program)


async def launch(call: Call) -> Answer | None:
    """Launch a program; with `stream` its events are the reply, with `tied` it ends when the client goes away."""
    request = await program_of(_LAUNCH, call.exchange.scope["headers"], call.content_type, call.body)
    session = request.in_session(call.exchange.scope["headers"], call.caller.tenant)
    spec = request.spec(session, (call.exchange.header(b"idempotency-key") or b"").decode("latin-1"))
    call.caller.model = spec.model
    call.caller.claim(spec.idempotency_key)
    if request.tied:
        run = await call.client.run(spec=spec)
        call.caller.program_id = run.program_id
        await follow(call.exchange, run, encoded(event_value(tartlet.Accepted(run.program_id))))
        return None
    accepted = await call.lasting.launch(call.client, call.caller, spec)
    call.caller.program_id = accepted.program_id
    if not request.stream:
        return 201, {"object": "program", "id": accepted.program_id}
    await follow(call.exchange, await call.client.attach(accepted.program_id), encoded(event_value(accepted)))
    return None


async def validate(call: Call) -> Answer:
    """Check a program without running it."""
    request = await program_of(_PROGRAM, call.exchange.scope["headers"], call.content_type, call.body)
    return 200, {"digest": await call.client.validate(request.needed())}


async def programs(call: Call) -> Answer:
    """List programs, with `ended=true` also those that have ended."""
    infos = await call.client.list(ended=call.query("ended") in ("1", "true"))
    return 200, {"object": "list", "data": [info_value(info) for info in infos]}


async def program(call: Call) -> Answer:
    """Show one program."""
    call.caller.program_id = call.name
    for info in await call.client.list(ended=True):
        if info.program_id == call.name:
            return 200, info_value(info)
    raise UnknownProgram(program=call.name)


async def events(call: Call) -> None:
    """Follow a program's output."""
    call.caller.program_id = call.name
    offset = offset_of(call.exchange.header(b"last-event-id"), call.query("offset"))
    await follow(call.exchange, await call.client.attach(call.name, offset))


async def trace(call: Call) -> None:
    """Follow a program's calls."""
    call.caller.program_id = call.name
    every_s = call.number("every_s", 0.25, 60.0)
    await follow_calls(call.exchange, watch_program(call.client, call.name, every_s), call.name)


async def journal(call: Call) -> Answer:
    """Show some turns of a recorded run; with `texts=true` also what programs, models and clients wrote."""
    call.caller.program_id = call.name
    first, count = call.whole("first", 1, 1, MAX_TURN), call.whole("count", 50, 1, MAX_TURNS)
    texts = call.query("texts") in ("1", "true")
    return 200, await call.client.read_journal(call.name, first, count=count, texts=texts)


async def result(call: Call) -> Answer:
    """Wait for a program's end; status 202 says that it still runs."""
    call.caller.program_id = call.name
    wait_s = call.number("wait_s", 30.0, MAX_WAIT_S)
    run = await call.client.attach(call.name)
    try:
        async with asyncio.timeout(wait_s):
            ended = await run.wait()
    except TimeoutError:
        return 202, {"object": "program", "id": call.name, "state": "running"}
    finally:
        run.cancel()
    call.caller.saw_end(ended)
    return 200, {"object": "program.result", "id": call.name, **end_value(ended)}


async def send(call: Call) -> Answer:
    """Send a message to a program."""
    call.caller.program_id = call.name
    await call.client.send(call.name, message_of(call.content_type, call.body))
    return 200, {"object": "program.message", "id": call.name}


async def kill(call: Call) -> Answer:
    """End a program."""
    call.caller.program_id = call.name
    await call.client.kill(call.name, call.query("reason"))
    return 200, {"object": "program", "id": call.name, "deleted": True}


async def put(call: Call) -> Answer:
    """Put a program into the catalogue, after checking it."""
    request = await program_of(_ENTRY, call.exchange.scope["headers"], call.content_type, call.body)
    entry = request.entry(call.name)
    await call.client.validate(entry.source)
    (digest,) = await call.client.put([entry])
    return 200, {"object": "inferlet", "name": call.name, "digest": digest}


async def get(call: Call) -> Answer:
    """Show a program of the catalogue with its source."""
    return 200, entry_value(await call.client.get(call.name))


async def entries(call: Call) -> Answer:
    """List the catalogue."""
    return 200, {"object": "list", "data": [entry_value(entry) for entry in await call.client.catalogue()]}


async def delete(call: Call) -> Answer:
    """Remove a program from the catalogue."""
    await call.client.delete(call.name)
    return 200, {"object": "inferlet", "name": call.name, "deleted": True}


async def start_session(call: Call) -> Answer:
    """Name a new session. It begins with its first run."""
    del call
    return 201, {"object": "session", "id": f"ses_{uuid.uuid4().hex}"}


async def end_session(call: Call) -> Answer:
    """End a session once its last run has ended."""
    await call.client.end_session(own_session(call.caller.tenant, call.name).id)
    return 200, {"object": "session", "id": call.name, "deleted": True}
