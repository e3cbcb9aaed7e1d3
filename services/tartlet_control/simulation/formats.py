"""Reads traces of requests as programs: Mooncake's JSONL, and the CSV files of Azure's traces of LLM inference.

Mooncake's requests name the blocks of 512 tokens of their prompt by hashes of all tokens up to the block's end. So a
request whose prompt goes on from an earlier prompt is the next call of the same conversation, and only what is new is
prefilled. Azure's rows are calls that have nothing to do with each other.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tartlet_control.simulation.load import Call, Trace

BLOCK_TOKENS: Final = 512
"""Tokens of one of Mooncake's blocks."""
_ALONE: Final = 2
"""So many first blocks of a prompt don't make a conversation: many share a system prompt."""
AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def azure(path: Path) -> list[Trace]:
    """Read a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens: one program of one call a row.

    Raises:
        ValueError: a row isn't of that form; the message names the row.
    """
    traces: list[Trace] = []
    start: datetime | None = None
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"][:26])
                start = start or at
                call = int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))
                traces.append(Trace("call", max(0.0, (at - start).total_seconds()), ((call,),)))
            except (KeyError, TypeError, ValueError) as e:
                raise ValueError(f"{path}, line {number}: not {', '.join(AZURE)}: {e}") from e
    if not traces:
        raise ValueError(f"{path} has no rows: write the columns {', '.join(AZURE)}, and a row for each call")
    return sorted(traces, key=lambda t: t.arrival_s)


def mooncake(entries: Iterable[Mapping[str, Any]]) -> list[Trace]:
    """Return the conversations of Mooncake's requests, which are ordered by time (`timestamp` in milliseconds).

    Example:
        >>> first = {"timestamp": 0, "input_length": 1600, "output_length": 9, "hash_ids": [0, 1, 2, 3]}
        >>> then = {"timestamp": 5000, "input_length": 2000, "output_length": 7, "hash_ids": [0, 1, 2, 8]}
        >>> [(t.waves, t.pauses_s) for t in mooncake([first, then])]
        [((((1600, 9),), ((464, 7),)), (0.0, 5.0))]
    """
    talks: list[tuple[float, list[Call], list[float], list[float]]] = []  # arrival, calls, pauses, arrivals
    by_block: dict[int, int] = {}  # the last whole block of each conversation
    for entry in entries:
        at, ids = float(entry["timestamp"]) / 1e3, [int(i) for i in entry["hash_ids"]]
        tokens, answer = int(entry["input_length"]), max(1, int(entry["output_length"]))
        known = next((n for n in range(len(ids) - 1, _ALONE - 1, -1) if ids[n] in by_block), None)
        if known is None:
            talk = len(talks)
            talks.append((at, [(tokens, answer)], [0.0], [at]))
        else:
            talk = by_block.pop(ids[known])
            _, calls, pauses, arrivals = talks[talk]
            calls.append((max(1, tokens - BLOCK_TOKENS * (known + 1)), answer))
            pauses.append(max(0.0, at - arrivals[-1]))
            arrivals.append(at)
        whole = tokens // BLOCK_TOKENS - 1
        if _ALONE <= whole < len(ids):
            by_block[ids[whole]] = talk
    return [Trace("conversation", at, tuple((c,) for c in calls), tuple(p)) for at, calls, p, _ in talks]


def is_mooncake(path: Path) -> bool:
    """Return whether a file of JSON lines has requests with `hash_ids` instead of programs."""
    with path.open() as file:
        line = next((line for line in file if line.strip()), "")
    try:
        entry = json.loads(line or "{}")
    except ValueError:
        return False
    return isinstance(entry, dict) and "hash_ids" in entry


def read_mooncake(path: Path) -> list[Trace]:
    """Read a file of Mooncake's requests.

    Raises:
        ValueError: a line isn't of that form.
    """
    try:
        with path.open() as file:
            return mooncake([json.loads(line) for line in file if line.strip()])
    except (KeyError, TypeError, ValueError) as e:
        wrong = f"{e.args[0]} is missing" if isinstance(e, KeyError) else str(e)
        raise ValueError(f"{path}: a line is no request of a Mooncake trace: {wrong}") from e
