"""The errors of arguments that a call refuses.

A call packs its arguments without checks, which is fast. If packing fails, these functions find the wrong argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeVar

from inferlet._values.arguments import shown
from inferlet._values.types import CompiledGrammar, Embed, KvPage, PageTable, TokenSlot
from inferlet.errors import InvalidArgument

_Handle = TypeVar("_Handle", bound=int)

OTHERS: dict[type, frozenset[type]] = {
    cls: frozenset({KvPage, Embed, TokenSlot, PageTable, CompiledGrammar} - {cls})
    for cls in (KvPage, Embed, TokenSlot, PageTable, CompiledGrammar)
}
"""The classes of handles that may not stand where one of this class belongs."""
_WANTED: dict[type, str] = {
    KvPage: "KV pages, as `alloc_kvpage` gives them",
    Embed: "embeds, as `alloc_emb` gives them",
    TokenSlot: "token slots, as `alloc_slot` gives them",
    PageTable: "page tables, as `table` gives them",
    CompiledGrammar: "grammars, as `alloc_grammar` gives them",
}
_A_U32 = f"a whole number from 0 to {2**32 - 1}"
_TOKENIZE = "text is no list of tokens, `await tokenize(text)` gives its tokens"


def utf8(call: str, argument: str, text: str) -> bytes:
    """Return text as UTF-8.

    Raises:
        InvalidArgument: the text contains half of a surrogate pair, which JSON can express and UTF-8 can't.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start : error.end]
        told = f"{half!a} at {error.start} is half a character: `text.encode(errors='replace').decode()` replaces it"
        raise refusal(call, argument, told) from None


def refusal(call: str, argument: str, detail: str) -> InvalidArgument:
    """Make the error of one argument of a call."""
    return InvalidArgument(argument=f"{argument} of {call}", detail=detail)


def _is_u32(value: Any) -> bool:
    try:
        return 0 <= index(value) < 2**32
    except TypeError:
        return False


def numbers(names: Sequence[str], values: Sequence[Any]) -> InvalidArgument:
    """Make the error of a command whose numbers don't fit its record.

    Args:
        names: The name of the call, then the names of the arguments that gave the first of the values.
        values: The numbers of the record.

    Example:
        >>> numbers(("cancel", "since"), (-1, 0, 0)).fields["argument"]
        'since of cancel'
    """
    call, *names = names or ("this call",)
    for name, value in zip(names, values, strict=False):
        if not _is_u32(value):
            return refusal(call, name, f"it is {_A_U32}, not {shown(value)}")
    return refusal(call, "a number", f"it is {_A_U32}")


def masking(page: Any, mask: Any, page_size: int) -> int:
    """Return the bits of a page's mask.

    Raises:
        InvalidArgument: `page` is no page, or `mask` is no mask of its slots.
    """
    handles("mask_kvpage", "page", KvPage, page)
    if hasattr(mask, "__index__"):
        bits = index(mask)
        told = f"{shown(mask)} hides tokens behind them" if bits >= 0 else f"not {shown(mask)}"
    elif isinstance(mask, (str, bytes)) or not hasattr(mask, "__iter__"):
        raise refusal("mask_kvpage", "mask", f"it is a list of booleans, or a number's bits, not {shown(mask)}")
    else:
        hidden = list(mask)
        bits = sum(1 << i for i, hide in enumerate(hidden) if hide) if len(hidden) <= page_size else -1
        told = f"not {len(hidden)}"
    if not 0 <= bits < 1 << page_size:
        raise refusal("mask_kvpage", "mask", f"it is for the {page_size} tokens of a page, {told}")
    return bits


def copying(src: Any, dst: Any, src_offset: Any, dst_offset: Any, page_size: int) -> int:
    """Return how many tokens fit from the offset of one page to the offset of another.

    Raises:
        InvalidArgument: a page is none, or an offset is past the end of its page.
    """
    for name, page in (("src", src), ("dst", dst)):
        handles("copy_kvpage", name, KvPage, page)
    for name, offset in (("src_offset", src_offset), ("dst_offset", dst_offset)):
        if not hasattr(offset, "__index__") or not 0 <= index(offset) <= page_size:
            raise refusal("copy_kvpage", name, f"a page has {page_size} tokens, it can't be {shown(offset)}")
    return page_size - max(index(src_offset), index(dst_offset))


def copying_table(table: Any, first: Any, page: Any, offset: Any, into: Any, page_size: int) -> int:
    """Return how many tokens fit from a slot of a table's row to the offset of a page.

    Raises:
        InvalidArgument: a handle is none, an offset is past the end of the page, or `into` is neither of both.
    """
    handles("copy_table", "table", PageTable, table)
    handles("copy_table", "page", KvPage, page)
    if into not in {"page", "table"}:
        raise refusal("copy_table", "into", f"it is 'page' or 'table', not {shown(into)}")
    if not _is_u32(first):
        raise refusal("copy_table", "first", f"it is a slot of the table, not {shown(first)}")
    if not hasattr(offset, "__index__") or not 0 <= index(offset) <= page_size:
        raise refusal("copy_table", "offset", f"a page has {page_size} tokens, it can't be {shown(offset)}")
    return page_size - max(index(first) % page_size, index(offset))


def handles(call: str, argument: str, cls: type[_Handle], given: Any) -> list[_Handle]:
    """Return handles as a list, a single handle as a list of one.

    Raises:
        InvalidArgument: a value is no handle of this class.

    Example:
        >>> handles("forward", "ikv", KvPage, KvPage(3))
        [KvPage(3)]
    """
    try:
        listed: list[_Handle] = [given] if isinstance(given, int) else list(_iterable(given))  # type: ignore[list-item]
        once = iter(given) is given if not isinstance(given, int) else False
    except TypeError:
        raise refusal(call, argument, f"it takes {_WANTED[cls]}, not {shown(given)}") from None
    if once:  # it may have been used up
        raise refusal(call, argument, f"it takes a list of {_WANTED[cls]}, not {shown(given)}")
    for handle in listed:
        if type(handle) in OTHERS[cls] or not _is_u32(handle):
            raise refusal(call, argument, f"it takes {_WANTED[cls]}, not {shown(handle)}")
    return listed


def _iterable(given: Any) -> Any:
    if hasattr(given, "__await__"):
        raise TypeError
    return given


def forward(ikv: Any, iemb: Any, okv: Any, oemb: Any) -> tuple[list[KvPage], list[Embed], list[KvPage], list[Embed]]:
    """Return the arguments of `forward` as lists.

    Raises:
        InvalidArgument: a value is no handle of its class.
    """
    read, into = handles("forward", "ikv", KvPage, ikv), handles("forward", "iemb", Embed, iemb)
    return read, into, handles("forward", "okv", KvPage, okv), handles("forward", "oemb", Embed, oemb)


def tokens(call: str, given: Any) -> InvalidArgument:
    """Make the error of a call whose tokens are no token ids."""
    if isinstance(given, (str, bytes)):
        return refusal(call, "tokens", f"{_TOKENIZE}: {shown(given)}")
    return refusal(call, "tokens", f"they are token ids, {_A_U32} each, not {shown(given)}")


def embedding(given: Any, positions: Any, embeds: Any) -> InvalidArgument:
    """Make the error of wrong arguments of `embed_txt`."""
    if isinstance(given, (str, bytes)):
        return tokens("embed_txt", given)
    try:
        handles("embed_txt", "embeds", Embed, embeds)
    except InvalidArgument as error:
        return error
    for token in _each(given):
        if not _is_u32(token):
            return tokens("embed_txt", given)
    for position in _each(positions):
        if not _is_u32(position):
            return refusal("embed_txt", "positions", f"each is {_A_U32}, not {shown(position)}")
    return refusal("embed_txt", "the arguments", "tokens, positions and embeds are lists, or a single one of each")


def _each(given: Any) -> list[Any]:
    try:
        return [given] if hasattr(given, "__await__") else list(given)  # a future gives itself, and then fails
    except TypeError:
        return [given]


def sampling(floats: dict[str, Any], wholes: dict[str, Any], stop: Any) -> InvalidArgument:
    """Make the error of wrong arguments of `sample`."""
    for name, value in floats.items():
        if not hasattr(value, "__float__"):
            return refusal("sample", name, f"it is a number, not {shown(value)}")
    for name, value in wholes.items():
        if not (hasattr(value, "__index__") if name == "seed" else _is_u32(value)):
            return refusal("sample", name, f"it is {_A_U32}, not {shown(value)}")
    if isinstance(stop, int) or not all(map(_is_u32, _each(stop))):
        return refusal("sample", "stop", f"it is a list of token ids, not {shown(stop)}")
    return refusal("sample", "the arguments", "temperature, top_p and min_p are too large for 32 bits")


def data(call: str, argument: str, value: Any) -> bytes:
    """Return text as UTF-8, or bytes as they are.

    Raises:
        InvalidArgument: it is neither.
    """
    if isinstance(value, str):
        return utf8(call, argument, value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise refusal(call, argument, f"it takes text or bytes, not {shown(value)}")
