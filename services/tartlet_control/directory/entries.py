"""The form of the directory's entries, and the checks of what is read, which may be of another release."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from typing import Any, Final

from tartlet_common.errors.base import TartletError
from tartlet_control.order import book
from tartlet_control.order.sizes import BUCKETS, MOST_RUNS, Sizes
from tartlet_control.sharing.names import MAX_TOKENS, Done, Key, Version, checked
from tartlet_control.sharing.reuse import root_of_rows, rows_of
from tartlet_control.tables.lineage import chain

NAMES: Final = "names"
CONTEXTS: Final = "contexts"
DONE: Final = "done"
"""The last command of each program on each name."""
HISTORIES: Final = "histories"
PLACEMENTS: Final = "placements"
PREFIXES: Final = "prefixes/"
"""Begins the section of each engine's rows, behind which the engine's id follows."""
POPULATION: Final = b"population"
"""The field of the runs of all programs together."""
DIGEST_BYTES: Final = 16
MAX_TEXT: Final = 1024
MAX_PAGE_SIZE: Final = 1 << 16
_TOKEN_BYTES: Final = 4
_BUCKETS: Final = {str(i): i for i in range(BUCKETS)}


class BadEntry(Exception):
    """An entry that no control of this release has written."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for, without the tokens."""

    number: int
    digest: bytes
    page_size: int
    program_id: str
    ticket: int
    ttl_s: float
    used_s: float
    adapter: str = ""


def texts_field(texts: tuple[str, ...]) -> bytes:
    """Return the name of an entry in its section, made of the texts that identify the entry."""
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def texts_of(field: bytes) -> tuple[str, str, str]:
    """Return the three texts of a field.

    Raises:
        BadEntry: there are others.
    """
    first, second, third = _texts(field, 3)
    return first, second, third


def _texts(field: bytes, count: int) -> list[str]:
    texts = _json(field)
    if not isinstance(texts, list) or len(texts) != count or not all(isinstance(each, str) for each in texts):
        raise BadEntry(f"the field isn't {count} texts")
    if max(map(len, texts)) > MAX_TEXT:
        raise BadEntry(f"a text is longer than {MAX_TEXT}")
    return texts


# ---- names ----------------------------------------------------------------------------------------------------------


def named(version: Version) -> bytes:
    """Return the entry of a name."""
    return _dump(
        {
            "number": version.number,
            "digest": version.digest.hex(),
            "page_size": version.page_size,
            "program": version.program_id,
            "ticket": version.ticket,
            "ttl_s": version.ttl_s,
            "used_s": version.used_s,
            "adapter": version.adapter,
        }
    )


def named_of(value: bytes) -> Named:
    """Read the entry of a name.

    Raises:
        BadEntry: it is none.
    """
    told = _mapping(value)
    try:
        digest = bytes.fromhex(_text(told, "digest"))
    except ValueError as e:
        raise BadEntry("the digest isn't hexadecimal") from e
    page_size = _whole(told, "page_size", 1, MAX_PAGE_SIZE)
    return Named(
        _whole(told, "number", 1, 1 << 62), digest, page_size, _text(told, "program"),
        _whole(told, "ticket", 0, 1 << 62), _number(told, "ttl_s"), _number(told, "used_s"),
        _text(told, "adapter") if "adapter" in told else "",
    )  # fmt: skip


def context(version: Version) -> bytes:
    """Return the entry of the tokens that a name stands for, behind their digest."""
    tokens = version.tokens
    if sys.byteorder == "big":
        tokens = array("I", tokens)
        tokens.byteswap()
    return version.digest + tokens.tobytes()


def version_of(key: Key, told: Named, value: bytes) -> Version:
    """Make a version of its two entries. Its digest must be that of the tokens for the tenant and the model.

    Raises:
        BadEntry: the entries don't belong together, or to this name.
    """
    try:
        checked(key.name)
    except (TartletError, UnicodeError) as e:
        raise BadEntry(f"the name: {e}") from e
    data = value[DIGEST_BYTES:]
    if len(data) % _TOKEN_BYTES or not 1 <= len(data) // _TOKEN_BYTES <= MAX_TOKENS:
        raise BadEntry(f"{len(data)} bytes of tokens")
    tokens = array("I", data)
    if sys.byteorder == "big":
        tokens.byteswap()
    before = root_of_rows(key.tenant, key.model_digest, told.page_size, told.adapter)
    digest = blake2b(tokens.tobytes(), digest_size=len(before), key=before).digest()
    if digest != told.digest or value[:DIGEST_BYTES] != digest:
        raise BadEntry("the digest isn't that of the tokens")
    return Version(
        number=told.number,
        tokens=tokens,
        digest=digest,
        rows=chain(before, rows_of(tokens.tolist(), told.page_size)),
        program_id=told.program_id,
        ticket=told.ticket,
        ttl_s=told.ttl_s,
        used_s=told.used_s,
        page_size=told.page_size,
        adapter=told.adapter,
    )


def done(last: Done) -> bytes:
    """Return the entry of a program's last command on a name."""
    return _dump(last._asdict())


def done_of(field: bytes, value: bytes) -> tuple[str, Key, Done]:
    """Read the program, the name and the command of an entry.

    Raises:
        BadEntry: it is none.
    """
    program_id, *key = _texts(field, 4)
    told = _mapping(value)
    return program_id, Key(*key), Done(_whole(told, "ticket", 0, 1 << 62), _whole(told, "number", 0, 1 << 62))


# ---- histories and placements ---------------------------------------------------------------------------------------


def history_field(key: book.Key | None) -> bytes:
    """Return the field of the runs of a kind of program; None: of all programs."""
    return POPULATION if key is None else texts_field(key)


def sizes(known: Sizes) -> bytes:
    """Return the entry of how much past runs used: the counts of the buckets that have any."""
    counts = {str(i): count for i, count in enumerate(known.counts.tolist()) if count}
    return _dump({"seen": known.seen, "counts": counts, "service_s": known.service_s, "tokens": known.tokens})


def sizes_of(value: bytes) -> Sizes:
    """Read the entry of past runs.

    Raises:
        BadEntry: it is none.
    """
    told = _mapping(value)
    counts = told.get("counts")
    if not isinstance(counts, dict):
        raise BadEntry("it has no counts")
    found = Sizes()
    found.seen = _whole(told, "seen", 1, 1 << 62)
    for bucket in counts:
        if bucket not in _BUCKETS:
            raise BadEntry("a bucket is none")
        found.counts[_BUCKETS[bucket]] = _number(counts, bucket)
    if "tokens" in told:
        found.service_s, found.tokens = _number(told, "service_s"), _number(told, "tokens")
    found.total = float(found.counts.sum())
    if not 0 < found.total <= MOST_RUNS:
        raise BadEntry("the counts are too many, or none")
    return found


def engines(of_models: Mapping[str, str]) -> bytes:
    """Return the entry of where a program is: an engine's id for each model's digest."""
    return _dump(dict(of_models))


def engines_of(value: bytes) -> dict[str, str]:
    """Read the entry of where a program is.

    Raises:
        BadEntry: it is none.
    """
    told = _mapping(value)
    return {model: _text(told, model) for model in told}


# ---- parts ----------------------------------------------------------------------------------------------------------


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise BadEntry("it isn't JSON") from e


def _mapping(data: bytes) -> dict[str, Any]:
    told = _json(data)
    if not isinstance(told, dict):
        raise BadEntry("it isn't a JSON object")
    return told


def _text(told: dict[str, Any], name: str) -> str:
    value = told.get(name)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise BadEntry(f"{name} isn't a text of at most {MAX_TEXT} characters")
    return value


def _whole(told: dict[str, Any], name: str, least: int, most: int) -> int:
    value = told.get(name)
    if type(value) is not int or not least <= value <= most:
        raise BadEntry(f"{name} isn't a whole number from {least} to {most}")
    return value


def _number(told: dict[str, Any], name: str) -> float:
    value = told.get(name)
    if type(value) not in (int, float):
        raise BadEntry(f"{name} isn't a number")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError as e:
        raise BadEntry(f"{name} is too large") from e
    if not isfinite(number) or number < 0:
        raise BadEntry(f"{name} is below 0, or no number")
    return number
