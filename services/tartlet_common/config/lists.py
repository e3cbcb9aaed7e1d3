"""Reads settings that are lists: separated by commas, or in lines of a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tartlet_common.errors.registry import InvalidConfig

_ADAPTER: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\s*=\s*([^\s\0][^\0]*)")
_SHOWN_CHARS: Final = 64


class Listing(NamedTuple):
    """What a file of adapters says: the directory of each name, and why other lines name none."""

    directories: Mapping[str, Path]
    faults: Mapping[str, str]
    """By the beginning of the line."""


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


def adapters_listed(text: str, base: Path) -> Listing:
    """Read the lines NAME=DIRECTORY of the file that a worker's setting `adapters_file` names.

    A wrong line costs the other lines nothing. Empty lines, and lines that begin with "#", say nothing.

    Args:
        text: the file's content.
        base: where directories that aren't absolute begin.

    Example:
        >>> adapters_listed("terse = a/b", Path("/models")).directories
        {'terse': PosixPath('/models/a/b')}
    """
    found: dict[str, Path] = {}
    faults: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        match = _ADAPTER.fullmatch(line)
        if match is None:
            faults[line[:_SHOWN_CHARS]] = "the line is not NAME=DIRECTORY"
        elif match[1] in found:
            faults[line[:_SHOWN_CHARS]] = "its name stands in the file twice, and the first line counts"
        else:
            found[match[1]] = base / match[2]
    return Listing(found, faults)
