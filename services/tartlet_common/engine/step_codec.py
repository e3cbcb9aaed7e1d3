"""Converts steps and results to and from frames: each array field of a dataclass is one `bytes` column, in order."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

import numpy as np

from tartlet_common.engine import step as s
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_protos import engine_pb2

_BATCHES: dict[int, type[Any]] = {int(cls.kind): cls for cls in get_args(s.Batch)}


def _scalar(hint: Any) -> type[np.generic] | None:
    """Return X of the type hint NDArray[X], or None for another hint.

    NDArray[X] is an alias: before numpy 2.5 its arguments are those of ndarray[shape, dtype[X]], since then X alone.
    """
    inner = (get_args(hint) or (None,))[-1]
    inner = (get_args(inner) or (inner,))[0]
    return inner if isinstance(inner, type) and issubclass(inner, np.generic) else None


def _columns_of(cls: type[Any]) -> tuple[tuple[str, np.dtype[Any]], ...]:
    """Return names and dtypes of the array fields of `cls`, in order."""
    hints = get_type_hints(cls)
    scalars = [(f.name, _scalar(hints[f.name])) for f in fields(cls)]
    columns = tuple((name, np.dtype(x).newbyteorder("<")) for name, x in scalars if x is not None)
    assert columns, f"{cls.__name__} has no arrays: `_scalar` doesn't understand this numpy's type hints"
    return columns


_COLUMNS = {cls: _columns_of(cls) for cls in (*get_args(s.Batch), s.BatchResult, s.TableChanges, s.Swaps)}

_LATER: dict[type[Any], tuple[int, ...]] = {s.Forward: (2, 1), s.Sample: (4, 1), s.BatchResult: (2,)}
"""How many of the last columns of a batch or a result are left out if they are empty, the most first: processes of a
release that didn't have the columns read the others."""


def _pack(value: Any) -> list[bytes]:
    """Return the columns of a batch, without later ones that are empty."""
    cls = type(value)
    columns = [getattr(value, name).astype(dtype, copy=False).tobytes() for name, dtype in _COLUMNS[cls]]
    for later in _LATER.get(cls, ()):
        if not any(columns[-later:]):
            return columns[:-later]
    return columns


def _unpack(cls: type[Any], columns: Any) -> dict[str, Any]:
    names = _COLUMNS[cls]
    missing = len(names) - len(columns)
    if missing in _LATER.get(cls, ()):
        names = names[:-missing]
    if len(columns) != len(names):
        raise MalformedSubmission(detail=f"{cls.__name__} has {len(names)} columns, the frame {len(columns)}")
    try:
        return {name: np.frombuffer(data, dtype) for (name, dtype), data in zip(names, columns, strict=True)}
    except ValueError as e:
        raise MalformedSubmission(detail=f"{cls.__name__}: {e}") from e


def step_to_proto(step: s.Step) -> engine_pb2.StepFrame:
    """Encode a step as a frame."""
    return engine_pb2.StepFrame(
        number=step.number,
        batches=[engine_pb2.BatchFrame(kind=int(b.kind), columns=_pack(b)) for b in step.batches],
        clear_pages=step.clear_pages.tobytes(),
        clear_embeds=step.clear_embeds.tobytes(),
        clear_slots=step.clear_slots.tobytes(),
        reset_lanes=step.reset_lanes.tobytes(),
        traceparent=step.traceparent,
        tables=_pack(step.tables) if len(step.tables.table) else (),
        swaps=_pack(step.swaps) if len(step.swaps.out_page) + len(step.swaps.in_page) else (),
    )


def step_from_proto(frame: engine_pb2.StepFrame) -> s.Step:
    """Decode a step; its arrays are read-only views of the frame.

    Raises:
        MalformedSubmission: a batch has an unknown kind, or columns that don't fit its kind.
    """
    lists = frame.clear_pages, frame.clear_embeds, frame.clear_slots, frame.reset_lanes
    if any(len(ids) % 4 for ids in lists):
        raise MalformedSubmission(detail="a list of ids is cut short")
    batches = []
    for b in frame.batches:
        cls = _BATCHES.get(b.kind)
        if cls is None:
            raise MalformedSubmission(detail=f"unknown batch kind {b.kind}")
        batches.append(cls(**_unpack(cls, b.columns)))
    return s.Step(
        number=frame.number,
        batches=tuple(batches),
        clear_pages=np.frombuffer(frame.clear_pages, "<i4"),
        clear_embeds=np.frombuffer(frame.clear_embeds, "<i4"),
        clear_slots=np.frombuffer(frame.clear_slots, "<i4"),
        reset_lanes=np.frombuffer(frame.reset_lanes, "<u4"),
        traceparent=frame.traceparent,
        tables=s.TableChanges(**_unpack(s.TableChanges, frame.tables)) if frame.tables else s.NO_CHANGES,
        swaps=s.Swaps(**_unpack(s.Swaps, frame.swaps)) if frame.swaps else s.NO_SWAPS,
    )


def result_to_proto(result: s.StepResult) -> engine_pb2.StepResultFrame:
    """Encode a step's results as a frame."""
    return engine_pb2.StepResultFrame(
        number=result.number,
        results=[engine_pb2.BatchResultFrame(columns=_pack(r), detail=r.detail) for r in result.results],
        computed_tokens=result.computed_tokens,
        device_s=result.device_s,
    )


def result_from_proto(frame: engine_pb2.StepResultFrame) -> s.StepResult:
    """Decode a step's results.

    Raises:
        MalformedSubmission: the columns don't fit.
    """
    return s.StepResult(
        number=frame.number,
        results=tuple(
            s.BatchResult(**_unpack(s.BatchResult, r.columns), detail=tuple(r.detail)) for r in frame.results
        ),
        computed_tokens=frame.computed_tokens,
        device_s=frame.device_s,
    )
