"""A program's next run, which `continue_as_new` asked for: its arguments, and the messages that it gets first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b

from tartlet_common.abi import Record
from tartlet_common.errors.registry import InvalidArgument, TartletError
from tartlet_runtime.wasm.determinism import SEED_BYTES

_LENGTH_BYTES = 4


@dataclass(slots=True)
class NextRun:
    """What the next run begins with."""

    args: tuple[str, ...]
    messages: list[bytes]
    """Messages that the run before was given and gives back, in order."""
    error: TartletError | None = None
    """Ends the next run at once: somebody has killed the program between its runs."""

    @classmethod
    def of(cls, record: Record, payload: bytes) -> NextRun:
        """Read the payload of a CONTINUE.

        Raises:
            InvalidArgument: it isn't as docs/abi.md says.
        """
        try:
            args = json.loads(payload[: record.a])
        except (ValueError, RecursionError) as e:
            raise InvalidArgument(argument="args", detail=f"not JSON: {e}") from e
        if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
            raise InvalidArgument(argument="args", detail="a list of texts is wanted")
        messages, at = [], record.a
        while at < len(payload):
            begin = at + _LENGTH_BYTES
            at = begin + int.from_bytes(payload[at:begin], "little")
            messages.append(payload[begin:at])
        if at > len(payload):
            raise InvalidArgument(argument="messages", detail="the last one is cut")
        return cls(tuple(args), messages)


def next_seed(seed: bytes) -> bytes:
    """Return the seed of the next run, so that the runs of a program don't draw the same.

    Example:
        >>> len(next_seed(bytes(16))), next_seed(bytes(16)) == next_seed(bytes(16))
        (16, True)
    """
    return blake2b(seed, digest_size=SEED_BYTES, person=b"next run").digest()
