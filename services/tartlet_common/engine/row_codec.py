"""Rows by what they hold, as frames between control and workers carry them: a digest for each page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from tartlet_common.engine.defaults import MAX_KEPT_ROWS
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_protos import engine_pb2

DIGEST_BYTES: Final = 16


def labels_of(rows: Mapping[int, bytes], forgotten: Iterable[int] = ()) -> engine_pb2.RowLabels:
    """Return the message for digests by page, and for pages whose digests were taken back."""
    pages = np.fromiter(rows, "<i4", len(rows)).tobytes()
    gone = np.array([*forgotten], "<i4").tobytes()
    return engine_pb2.RowLabels(forgotten=gone, pages=pages, digests=b"".join(rows.values()))


def rows_of(labels: engine_pb2.RowLabels, num_pages: int) -> tuple[dict[int, bytes], list[int]]:
    """Return the digests by page, and the pages whose digests were taken back.

    Raises:
        MalformedSubmission: there are too many, a page isn't the engine's or stands twice, or the sizes don't fit.
    """
    sizes = len(labels.forgotten), len(labels.pages), len(labels.digests)
    if sizes[0] % 4 or sizes[1] % 4 or 4 * sizes[2] != DIGEST_BYTES * sizes[1] or sizes[1] > 4 * MAX_KEPT_ROWS:
        raise MalformedSubmission(detail=f"rows in columns of {sizes} bytes")
    pages = np.frombuffer(labels.pages, "<i4").tolist()
    if len(set(pages)) != len(pages) or not all(0 <= page < num_pages for page in pages):
        raise MalformedSubmission(detail=f"rows of pages that stand twice, or aren't among the engine's {num_pages}")
    digests = labels.digests
    found = {page: digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)] for at, page in enumerate(pages)}
    return found, np.frombuffer(labels.forgotten, "<i4").tolist()
