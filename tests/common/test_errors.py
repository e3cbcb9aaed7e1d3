"""The registry: every error survives the wire whole, and says what to do."""

from __future__ import annotations

import pickle
import string

import pytest

from tartlet_common.errors.registry import (
    REGISTRY,
    DeadlineExceeded,
    InvalidArgument,
    InvalidConfig,
    PageQuotaExceeded,
    TartletError,
    UnknownError,
)
from tartlet_common.rpc.error_proto import error_from_proto, error_to_proto


def _fields_of(cls: type[TartletError]) -> dict[str, object]:
    names = (name for _, name, _, _ in string.Formatter().parse(cls.message) if name)
    return {name: f"<{name}>" for name in names}


@pytest.mark.parametrize("cls", REGISTRY.values(), ids=lambda c: c.__name__)
def test_every_error_survives_the_wire_and_says_what_to_do(cls: type[TartletError]) -> None:
    error = cls(**_fields_of(cls))
    back = error_from_proto(error_to_proto(error))
    assert type(back) is cls
    assert back.fields == error.fields
    assert str(back) == str(error)
    assert "{" not in str(error)
    assert error.remedy.endswith(".") or (cls is InvalidArgument and error.explained == str(error))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_seconds_are_shown_with_the_digits_that_matter() -> None:
    error = DeadlineExceeded(deadline_s=2.716946601867676)
    assert str(error) == "the program ran longer than its deadline of 2.71695 s"
    assert error.fields == {"deadline_s": 2.716946601867676}
    assert str(DeadlineExceeded(deadline_s=600.0)).endswith(" 600 s")
    assert str(DeadlineExceeded(deadline_s=2.5e6)).endswith(" 2500000 s")
    assert str(DeadlineExceeded(deadline_s=None)).endswith(" None s")  # what a peer sent, whatever it is


def test_no_error_is_number_zero() -> None:
    assert error_to_proto(None).number == 0
    assert error_from_proto(error_to_proto(None)) is None


def test_a_number_of_a_newer_release_is_still_an_error() -> None:
    back = TartletError.from_wire(77_777, b'{"x":1}')
    assert isinstance(back, UnknownError)
    assert "77777" in str(back)


@pytest.mark.parametrize("fields", [b"", b"nonsense", b"[1]", b"3"])
def test_broken_fields_on_the_wire_still_give_the_error(fields: bytes) -> None:
    assert isinstance(TartletError.from_wire(PageQuotaExceeded.number, fields), PageQuotaExceeded)


def test_an_error_may_have_a_remedy_of_its_own() -> None:
    error = InvalidConfig(role="worker", detail="it is wrong", remedy="Put it right.")
    back = error_from_proto(error_to_proto(error))
    assert back is not None
    assert back.explained == "configuration of worker: it is wrong\nPut it right."
    assert InvalidConfig(role="worker", detail="it is wrong").remedy != back.remedy
