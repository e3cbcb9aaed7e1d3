"""One request's run: launched, followed as events, ended when nobody reads it any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec

import tartlet
from tartlet_common.errors.registry import FrameTooLarge, InternalError
from tartlet_gateway.runs.events import BadEventError, Counted, Delta, Event, EventReader, Finished
from tartlet_gateway.runs.models import Target

MAX_ARGUMENT_BYTES: Final = 1 << 20
"""The longest request that an inferlet is given: the bound of a program's arguments."""


def own_inferlet() -> tartlet.Source:
    """Return the inferlet that answers requests which name none: `openai_chat.py`.

    It ships beside this package; in a checkout it lies with the other standard inferlets.
    """
    here = Path(__file__).resolve()
    shipped = here.parents[1] / "_inferlets" / "openai_chat.py"
    path = shipped if shipped.exists() else here.parents[3] / "inferlets" / "std" / "openai_chat.py"
    return tartlet.Source(path.read_bytes(), filename=path.name)


class Runs:
    """Launches inferlets for requests."""

    def __init__(self, client: tartlet.AsyncClient) -> None:
        self._client = client
        self._own = own_inferlet()

    async def start(self, target: Target, arguments: dict[str, Any], *, durable: bool) -> tartlet.Run:
        """Launch what a request names; it ends when this side stops following it.

        Args:
            target: the model, and the inferlet of the catalogue; without one the gateway's own runs.
            arguments: the request, as the inferlet's first argument in JSON.
            durable: keep a journal.

        Raises:
            FrameTooLarge: the request is longer than a program's arguments may be.
            TartletError: the launch was refused.
        """
        text = msgspec.json.encode(arguments)
        if len(text) > MAX_ARGUMENT_BYTES:
            raise FrameTooLarge(size=len(text), limit=MAX_ARGUMENT_BYTES)
        source = None if target.inferlet else self._own
        return await self._client.run(
            spec=tartlet.LaunchSpec(
                source=source,
                inferlet=target.inferlet,
                args=[text.decode()],
                model=target.model,
                durable=durable,
            )
        )


async def events(run: tartlet.Run) -> AsyncGenerator[Event, None]:
    """Yield the events of a run to its end, and end the run when the caller stops reading.

    A program that sends no typed finish finishes its first choice with its end. A program that sends no text at all
    answers with its result. A program that counts no tokens is counted by the runtime.

    Raises:
        TartletError: the program failed.
    """
    reader = EventReader()
    said = finished = counted = False
    try:
        async for message in run:
            if isinstance(message, tartlet.Message):
                try:
                    event = reader.read(message.data)
                except BadEventError as e:
                    raise InternalError(detail=f"the inferlet sent a malformed reply event: {e}") from e
                said |= isinstance(event, Delta)
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


def closing(run: tartlet.Run) -> aclosing[AsyncGenerator[Event, None]]:
    """Return `events(run)` as a context, so that leaving it ends the run at once."""
    return aclosing(events(run))
