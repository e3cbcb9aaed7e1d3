"""Reads the JSON files of a checkpoint; errors name the file. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tartlet_common.errors.registry import CheckpointBroken


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn errors of the block into an error of this file of a checkpoint.

    Raises:
        CheckpointBroken: names the file and what is wrong with it.
    """
    try:
        yield
    except KeyError as error:
        raise CheckpointBroken(path=str(file.parent), detail=f"{file.name} lacks {error}") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CheckpointBroken(path=str(file.parent), detail=f"{file.name}: {error}") from error


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; errors as `reading`."""
    with reading(file):
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError("it is not an object")
    return value


def token_ids(said: Any) -> tuple[int, ...]:
    """Return the ids of a field that holds one id, a list of ids, or null."""
    return tuple(int(t) for t in (said if isinstance(said, list) else [] if said is None else [said]))
