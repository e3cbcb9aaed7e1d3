"""Makes the host do nothing at an operation."""

import asyncio
from typing import Any

from inferlet._wire.channel import Channel


def stub(op: int) -> None:
    """Make the host do nothing at an operation."""
    record, call = Channel.record, Channel.call

    def silent(self: Channel, given: int, *fields: Any, **more: Any) -> int:
        return self.next_ticket if given == op else record(self, given, *fields, **more)

    def empty(self: Channel, decode: Any, given: int, *fields: Any, **more: Any) -> asyncio.Future[Any]:
        if given != op:
            return call(self, decode, given, *fields, **more)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(decode(0, 0, 0, b""))
        return future

    Channel.record, Channel.call = silent, empty
