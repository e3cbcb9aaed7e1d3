"""Where responses are stored: in their tenant's store, for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

import tartlet
from tartlet_common.errors.registry import FrameTooLarge, Overloaded, ResourceQuotaExceeded
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.responses.records import DECODER, MOST_BYTES, Record, program_of, unknown

MOST_TURNS: Final = 1000
"""The longest conversation that is followed back."""


class Shelf:
    """One tenant's responses.

    Args:
        client: acts for the tenant alone.
        kept_s: for how long responses are stored, in seconds.
        hold: keeps the client open until what it returns is called, once.
    """

    def __init__(
        self, client: tartlet.AsyncClient, kept_s: float, hold: Callable[[], Callable[[], None]] | None = None
    ) -> None:
        self.client = client
        self.hold = hold or _unheld
        self._kept_s = kept_s

    async def put(self, record: Record, *, existing: bool = False) -> bool:
        """Store a response; with `existing` only if it is there. Returns whether it was there.

        Raises:
            ApiError: 400, there is no room for it.
            TartletError: the store doesn't answer.
        """
        text = msgspec.json.encode(record)
        try:
            if len(text) > MOST_BYTES:
                raise FrameTooLarge(size=len(text), what="bytes in a stored response", limit=MOST_BYTES)
            return await self.client.keep(_key(record.id), text, record.created_s + self._kept_s, existing=existing)
        except (FrameTooLarge, Overloaded, ResourceQuotaExceeded) as e:
            told = f"The response can't be stored: {e} Send `store: false`."
            raise ApiError(400, told, param="store", code="response_not_stored") from e

    async def get(self, given: str) -> Record:
        """Return a response.

        Raises:
            ApiError: 404, there is none of this id.
            TartletError: the store doesn't answer.
        """
        program_of(given)
        text = await self.client.kept(_key(given)) if self._kept_s else None
        if text is None:
            raise unknown(given)
        return DECODER.decode(text)

    async def delete(self, given: str) -> None:
        """Delete a response.

        Raises:
            ApiError: 404, there is none of this id.
            TartletError: the store doesn't answer.
        """
        program_of(given)
        if not await self.client.forget(_key(given)):
            raise unknown(given)

    async def conversation(self, last: Record) -> list[Record]:
        """Return a response and those before it, the first one first.

        Raises:
            ApiError: 400, one of them isn't there any more.
            TartletError: the store doesn't answer.
        """
        records = [last]
        while before := records[-1].request.previous_response_id:
            if len(records) >= MOST_TURNS:
                told = f"The conversation has more than {MOST_TURNS} turns: send its items as input."
                raise ApiError(400, told, param="previous_response_id", code="conversation_too_long")
            records.append(await self.previous(before))
        return records[::-1]

    async def previous(self, given: str) -> Record:
        """Return a response that a request names as the one before.

        Raises:
            ApiError: 400, it isn't there.
            TartletError: the store doesn't answer.
        """
        try:
            return await self.get(given)
        except ApiError as e:
            told = f"previous_response_id: {e.message} Send the whole conversation as input."
            code = "previous_response_not_found"
            raise ApiError(400, told, param="previous_response_id", code=code) from e

    # ---- who reads a stream -------------------------------------------------------------------------------------

    async def claim(self, given: str, gateway: str) -> None:
        """Note that a gateway's client reads a running response."""
        await self.client.keep(f"{_key(given)}/reader", gateway.encode(), time.time() + self._kept_s)

    async def claimed(self, given: str) -> str:
        """Return which gateway's client has read a running response last; "" if nobody has come back to it."""
        return (await self.client.kept(f"{_key(given)}/reader") or b"").decode()


def _key(given: str) -> str:
    return f"responses/{given}"


def _unheld() -> Callable[[], None]:
    """Return a no-op: nobody closes the client."""
    return lambda: None
