"""One request's run: launched, followed as events, ended when nobody reads it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

import tartlet
from tartlet_common.errors.registry import InternalError, UnknownProgram
from tartlet_gateway.runs.events import BadEventError, Called, Counted, Delta, Event, EventReader, Finished, Reasoned
from tartlet_gateway.runs.models import Target
from tartlet_gateway.runs.sessions import ALONE, Session

MAX_ARGUMENT_BYTES: Final = 1 << 20
"""The longest request that goes as an argument; a longer one goes as messages of at most this length."""
PARTS: Final = "request_parts"
"""The key of an argument that stands for so many messages, as `inferlet.reply.request` reads them."""


@cache
def own_inferlet(name: str) -> tartlet.Source:
    """Return an inferlet that answers requests which name none, such as `openai_chat.py`.

    It ships beside this package; in a checkout it lies with the other standard inferlets.
    """
    here = Path(__file__).resolve()
    shipped = here.parents[1] / "_inferlets" / name
    path = shipped if shipped.exists() else here.parents[3] / "inferlets" / "std" / name
    return tartlet.Source(path.read_bytes(), filename=path.name)


class Runs:
    """Launches inferlets for requests."""

    def __init__(self, client: tartlet.AsyncClient) -> None:
        self._client = client

    async def start(
        self,
        target: Target,
        arguments: dict[str, Any],
        *,
        durable: bool,
        own: str = "openai_chat.py",
        session: Session = ALONE,
        tied: bool = True,
    ) -> tartlet.Run:
        """Launch what a request names.

        Args:
            target: the model, and the inferlet of the catalogue; without one the gateway's own runs.
            arguments: the request, as the inferlet's first argument in JSON.
            durable: keep a journal.
            session: the session that the run belongs to.
            own: which of the gateway's inferlets runs if the target names none.
            tied: the run ends when this side stops following it.

        Raises:
            TartletError: the launch was refused.
        """
        text = msgspec.json.encode(arguments)
        parts = [text[at : at + MAX_ARGUMENT_BYTES] for at in range(0, len(text), MAX_ARGUMENT_BYTES)]
        argument = text if len(parts) == 1 else msgspec.json.encode({PARTS: len(parts)})
        spec = tartlet.LaunchSpec(
            source=None if target.inferlet else own_inferlet(own),
            inferlet=target.inferlet,
            args=[argument.decode()],
            model=target.model,
            durable=durable,
            session=session.id,
            parent_session=session.parent,
            ends_session=session.ends,
        )
        if tied:
            run = await self._client.run(spec=spec)
        else:
            run = await self._client.attach((await self._client.launch(spec=spec)).program_id)
        if len(parts) > 1:
            await self._send(run, parts)
        return run

    async def _send(self, run: tartlet.Run, parts: list[bytes]) -> None:
        """Send a long request; a program that has ended already says why itself.

        Without all its parts an untied program would wait for its session's end, so it is ended here.
        """
        try:
            for part in parts:
                await self._client.send(run.program_id, part)
        except UnknownProgram:
            pass
        except BaseException:
            run.cancel()
            killing = asyncio.ensure_future(self._client.kill(run.program_id, "its request didn't arrive"))
            killing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise


async def events(run: tartlet.Run, *, whole: bool = False) -> AsyncGenerator[Event, None]:
    """Yield the events of a run to its end, and stop following the run when the caller stops reading.

    A run that is tied to this side ends then.

    A program that sends no typed finish finishes its first choice with its end. A program that sends no text at all
    answers with its result. A program that counts no tokens is counted by the runtime.

    Args:
        run: the run.
        whole: refuse to go on without the beginning of the output.

    Raises:
        TartletError: the program failed.
    """
    reader = EventReader()
    said = finished = counted = False
    offset = 0
    try:
        async for message in run:
            if whole and not isinstance(message, tartlet.Accepted):
                if message.offset != offset:
                    raise InternalError(detail="the beginning of the program's output is gone")
                offset += 1
            if isinstance(message, tartlet.Message):
                try:
                    event = reader.read(message.data)
                except BadEventError as e:
                    raise InternalError(detail=f"the inferlet sent a malformed reply event: {e}") from e
                said |= isinstance(event, Delta | Reasoned | Called)
                finished |= isinstance(event, Finished)
                counted |= isinstance(event, Counted)
                yield event
            elif isinstance(message, tartlet.Ended):
                if message.error is not None:
                    raise message.error
                if not (said or finished) and message.result:
                    yield Delta(0, message.result)
                if rest := reader.rest().text:
                    yield Delta(0, rest)
                if not finished:
                    yield Finished(0, "stop")
                if not counted:
                    yield Counted(message.usage.input_tokens, message.usage.sampled_tokens)
    finally:
        run.cancel()


def closing(run: tartlet.Run, *, whole: bool = False) -> aclosing[AsyncGenerator[Event, None]]:
    """Return `events(run)` as a context, so that leaving it ends a tied run at once."""
    return aclosing(events(run, whole=whole))
