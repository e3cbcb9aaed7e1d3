"""Steps and results cross the process boundary unchanged."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typing_extensions import TypeAliasType, TypeVar

from tartlet_common.engine import step as s
from tartlet_common.engine.step_codec import (
    _COLUMNS,
    _scalar,
    result_from_proto,
    result_to_proto,
    step_from_proto,
    step_to_proto,
)
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_protos import engine_pb2


def _columns(cls: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: hnp.arrays(dtype, st.integers(0, 9)) for name, dtype in _COLUMNS[cls]})


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and all(
        np.array_equal(getattr(a, n).view(np.uint8), getattr(b, n).view(np.uint8)) for n, _ in _COLUMNS[type(a)]
    )


def test_an_array_s_type_is_found_by_numpy_s_alias_of_before_and_after_2_5() -> None:
    alias_type: Any = TypeAliasType
    variable: Any = TypeVar
    array: Any = np.ndarray
    dtype: Any = np.dtype
    x = variable("x", bound=np.generic)
    aliases: list[Any] = [npt.NDArray, alias_type("NDArray", array[Any, dtype[x]], type_params=(x,))]
    for alias in aliases:
        assert [_scalar(alias[kind]) for kind in (np.int32, np.uint8)] == [np.int32, np.uint8]
    for other in (int, str, tuple[str, ...], tuple[bytes, int], list[int], float | None):
        assert _scalar(other) is None
    assert [name for name, _ in _COLUMNS[s.MaskKvPage]] == [f.name for f in fields(s.MaskKvPage)]


@given(st.lists(st.one_of([_columns(cls) for cls in get_args(s.Batch)]), max_size=4), hnp.arrays("<i4", 5))
def test_a_step_survives_its_frame(batches: list[Any], ids: s.I32) -> None:
    step = s.Step(3, tuple(batches), clear_pages=ids, swaps=s.Swaps(ids, ids, ids, ids))
    wire = engine_pb2.StepFrame.FromString(step_to_proto(step).SerializeToString())
    back = step_from_proto(wire)
    assert back.number == 3
    assert np.array_equal(back.clear_pages, ids)
    assert _same(back.swaps, step.swaps)
    assert len(back.batches) == len(batches)
    assert all(_same(a, b) for a, b in zip(batches, back.batches, strict=True))


@given(_columns(s.BatchResult), st.lists(st.text(max_size=9), max_size=3))
def test_a_result_survives_its_frame(result: s.BatchResult, detail: list[str]) -> None:
    whole = s.BatchResult(**{f.name: getattr(result, f.name) for f in fields(result)} | {"detail": tuple(detail)})
    wire = result_to_proto(s.StepResult(9, (whole,), computed_tokens=4, device_s=0.5)).SerializeToString()
    back = result_from_proto(engine_pb2.StepResultFrame.FromString(wire))
    assert (back.number, back.computed_tokens, back.device_s) == (9, 4, 0.5)
    assert _same(back.results[0], whole)
    assert back.results[0].detail == tuple(detail)


@given(st.integers(0, 8), st.lists(st.binary(max_size=9), max_size=14), st.binary(max_size=9))
def test_random_columns_are_refused_or_decoded_but_never_worse(kind: int, columns: list[bytes], ids: bytes) -> None:
    frame = engine_pb2.StepFrame(batches=[engine_pb2.BatchFrame(kind=kind, columns=columns)], clear_slots=ids)
    try:
        step_from_proto(frame)
    except MalformedSubmission:
        return
    assert kind in {int(k) for k in s.Kind}


def test_a_frame_with_a_column_missing_is_refused() -> None:
    frame = engine_pb2.StepFrame(batches=[engine_pb2.BatchFrame(kind=int(s.Kind.MASK_KVPAGE), columns=[b"", b""])])
    with pytest.raises(MalformedSubmission, match="3 columns"):
        step_from_proto(frame)
