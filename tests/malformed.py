"""Records with wrong arguments for any call of the registry, for tests of the runtime and of control.

A call that is added to `tools/calls` is covered by itself: its arguments come from its layout there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from tartlet_common.errors.registry import REGISTRY
from tools.calls.layout import Arg, Call, Kind, numbers, payload
from tools.calls.registry import EVERY_CALL, EVERY_QUEUED

BOUNDARIES = [0, 1, 255, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
SMALL = st.integers(0, 6)
WORD = st.one_of(SMALL, SMALL, st.sampled_from(BOUNDARIES), st.integers(0, 2**32 - 1))
REAL = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5]), st.floats(width=32))
TEXTS = st.one_of(
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"", b"\xff\xfe", b"a\0b", b"[]", b"{}", b"[1]", b"null", b'{"messages": 3}']),
    st.sampled_from([b"[" * 2000, b"k" * 300]),
    st.binary(max_size=40),
)  # fmt: skip
BYTES = st.one_of(st.binary(max_size=72), st.lists(WORD, max_size=20).map(lambda ids: b"".join(map(_word, ids))))
IDS = st.one_of(st.lists(SMALL, max_size=6), st.lists(WORD, max_size=12), st.just([7] * 3000))


def _word(value: int) -> bytes:
    return value.to_bytes(4, "little")


VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.U32: WORD,
    Kind.U64: st.one_of(WORD, st.just(2**64 - 1)),
    Kind.F32: REAL,
    Kind.FLAG: st.one_of(st.booleans().map(int), WORD),
    Kind.IDS: IDS,
    Kind.REALS: st.lists(REAL, max_size=6),
    Kind.BYTES: BYTES,
    Kind.TEXT: TEXTS,
    Kind.JSON: TEXTS,
    Kind.BITS: st.one_of(st.none(), st.binary(max_size=20)),
}


class Malformed(NamedTuple):
    """The fields of a record."""

    queue: int
    a: int
    b: int
    c: int
    payload: bytes


@st.composite
def records(draw: st.DrawFn, call: Call) -> Malformed:
    """Records of a call: arguments of the right form and of any value, then perhaps torn from their layout."""
    given = {arg.name: draw(_value(arg)) for arg in call.args}
    fields, data = list(numbers(call, given)), payload(call, given)
    match draw(st.sampled_from(["whole", "whole", "cut", "longer", "field", "noise"])):
        case "cut":
            data = data[: draw(st.integers(0, max(0, len(data) - 1)))]
        case "longer":
            data += draw(st.binary(min_size=1, max_size=9))
        case "field":
            fields[draw(st.integers(0, 2))] = draw(WORD)
        case "noise":
            data = draw(BYTES)
    queue = draw(st.sampled_from([0, 0, 0, 9, 2**32 - 1])) if call.queue else 0
    a, b, c = (min(field, 2**32 - 1) for field in fields)
    return Malformed(queue, a, b, c, data)


def _value(arg: Arg) -> st.SearchStrategy[Any]:
    return VALUES[arg.kind]


def allowed(call: Call) -> set[int]:
    """The numbers of the errors that docs/calls.md says a call may raise."""
    named = {*call.errors, *EVERY_CALL, *(EVERY_QUEUED if call.queue else ())}
    return {number for number, error in REGISTRY.items() if error.__name__ in named}
