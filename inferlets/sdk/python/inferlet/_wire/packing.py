"""Packs arguments of commands into bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from inferlet._generated import packers
from inferlet.errors import InvalidArgument

T = TypeVar("T")


def pack_sampling(
    temperature: float, top_k: int, top_p: float, min_p: float, *, seed: int, draw: int, stop: Sequence[int]
) -> bytes:
    """Return the payload of a SAMPLE record."""
    return packers.sample_params(temperature, top_k, top_p, min_p, seed & (2**64 - 1), draw, stop, b"")


def pack_mask(mask: Sequence[Sequence[bool]] | bytes, before: int, num_tokens: int) -> bytes:
    """Return the mask of a FORWARD record: one row for each token, one column for each slot read and each token.

    Raises:
        InvalidArgument: the mask has another size.
    """
    columns = before + num_tokens
    num_bytes = (num_tokens * columns + 7) // 8
    if isinstance(mask, bytes):
        packed = mask
    elif len(mask) != num_tokens or any(len(row) != columns for row in mask):
        raise InvalidArgument(argument="mask", detail=f"needs {num_tokens} rows of {columns} columns")
    else:
        bits = "".join("1" if seen else "0" for row in reversed(mask) for seen in reversed(row))
        packed = int(bits or "0", 2).to_bytes(num_bytes, "little")
    if len(packed) != num_bytes:
        raise InvalidArgument(argument="mask", detail=f"{len(packed)} bytes, needs {num_bytes}")
    return packed


def single(values: Sequence[T], argument: str, several: str = "") -> T:
    """Return the only value of a list.

    Raises:
        InvalidArgument: the list has no value, or more than one.
    """
    if len(values) != 1:
        raise InvalidArgument(argument=argument, detail=f"expected one, got {len(values)}{several}")
    return values[0]
