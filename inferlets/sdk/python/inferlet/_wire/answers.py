"""Decoders of answers: functions that make a value of a record's a, b, c and payload."""

from __future__ import annotations

import json
import struct
from array import array
from math import inf
from typing import Any

from inferlet._values.types import ChatPrompt, Dist, Sampled
from inferlet._wire.channel import from_u32

_pack_u32 = struct.Struct("<I").pack
_unpack_float = struct.Struct("<f").unpack


def nothing(_a: int, _b: int, _c: int, _payload: bytes) -> None:
    """Return None: the program awaits only the end of the command."""
    return


def number(a: int, _b: int, _c: int, _payload: bytes) -> int:
    """Return the one number of the answer."""
    return a


def raw(_a: int, _b: int, _c: int, payload: bytes) -> bytes:
    """Return the payload as it came."""
    return payload


def text(_a: int, _b: int, _c: int, payload: bytes) -> str:
    """Return the payload as text; bytes that are no UTF-8 become U+FFFD."""
    return payload.decode(errors="replace")


def json_value(_a: int, _b: int, _c: int, payload: bytes) -> Any:
    """Return the value that the payload holds as JSON."""
    return json.loads(payload)


def tokens(_a: int, _b: int, _c: int, payload: bytes) -> list[int]:
    """Return the token ids that the payload holds."""
    return from_u32(payload)


def chat(_a: int, _b: int, _c: int, payload: bytes) -> ChatPrompt:
    """Return the text and the tokens of a FORMAT_CHAT."""
    end = 4 + 4 * int.from_bytes(payload[:4], "little")
    return ChatPrompt(payload[end:].decode(errors="replace"), from_u32(payload[4:end]))


def sampled(a: int, b: int, c: int, payload: bytes) -> Sampled:
    """Return the sampled token of a SAMPLE, with the log-probabilities and the bytes that it asked for."""
    if not payload:
        return Sampled(a, b != 0, _unpack_float(_pack_u32(c))[0])
    n = int.from_bytes(payload[:4], "little")
    told: dict[int, float] = {}
    forced: tuple[int, ...] = ()
    if n:
        values = array("f")
        values.frombytes(payload[4 + 4 * n : 4 + 8 * n])
        ids = from_u32(payload[4 : 4 + 4 * n])
        num_told = n - values.count(inf)  # behind these stand the forced ones
        told, forced = dict(zip(ids[:num_told], values, strict=False)), tuple(ids[num_told:])
    return Sampled(a, b != 0, _unpack_float(_pack_u32(c))[0], told, payload[4 + 8 * n :] or None, forced)


def dists(_a: int, _b: int, _c: int, payload: bytes) -> list[Dist]:
    """Return the distributions of a GET_NEXT_DIST."""
    n, k = struct.unpack_from("<II", payload)
    best = array("I")
    best.frombytes(payload[8 : 8 + 4 * n * k])
    probs = array("f")
    probs.frombytes(payload[8 + 4 * n * k : 8 + 8 * n * k])
    return [Dist(best[i * k : i * k + k], probs[i * k : i * k + k]) for i in range(n)]


def dist(a: int, b: int, c: int, payload: bytes) -> Dist:
    """Return the distribution of a GET_NEXT_DIST with one embed."""
    return dists(a, b, c, payload)[0]
