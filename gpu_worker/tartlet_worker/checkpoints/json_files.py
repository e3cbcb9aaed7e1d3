"""Reading a checkpoint's small files, so that whatever is wrong with one is told by its name. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tartlet_common.errors.registry import CheckpointBroken


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Whatever fails in here is a fault of that file of a checkpoint.

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
    """The JSON object in a file; errors as `reading`."""
    with reading(file):
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError("it is not an object")
    return value


def token_ids(said: Any) -> tuple[int, ...]:
    """Ids that a field gives as one, several (a list) or none (null)."""
    return tuple(int(t) for t in (said if isinstance(said, list) else [] if said is None else [said]))
