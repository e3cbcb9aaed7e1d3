"""Reads settings that are lists, separated by commas."""

from __future__ import annotations

from pathlib import Path

from tartlet_common.errors.registry import InvalidConfig


def listed(text: str) -> list[str]:
    """Split a setting at its commas; each part appears once.

    Example:
        >>> listed("a, b,,a ")
        ['a', 'b']
    """
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def named_directories(adapters: str) -> dict[str, Path]:
    """Return the directory of each name of a worker's setting `adapters`.

    Raises:
        InvalidConfig: a name stands in it twice.

    Example:
        >>> named_directories("terse=/a, formal=/b")
        {'terse': PosixPath('/a'), 'formal': PosixPath('/b')}
    """
    pairs = [part.partition("=") for part in listed(adapters)]
    found = {name: Path(directory) for name, _, directory in pairs}
    if len(found) < len(pairs):
        raise InvalidConfig(role="worker", detail="adapters: a name stands in it twice")
    return found
