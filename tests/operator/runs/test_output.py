"""The end of a program's output that a run's status keeps."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.errors.registry import ProgramFailed
from tartlet_operator.api.inferlet_run import OUTPUT_BYTES
from tartlet_operator.machinery.program_output import Outcome, json_bytes, tail
from tartlet_operator.runs import withhold


@given(st.binary(), st.integers(4, 64))
def test_bytes_that_are_not_text_stay_within_the_bound(data: bytes, limit: int) -> None:
    kept = tail(data, limit=limit)
    assert len(kept.text.encode()) <= limit
    assert kept.truncated or kept.text == data.decode(errors="replace")


@given(st.text(), st.integers(4, 64))
def test_the_end_of_the_output_is_kept_whole(text: str, limit: int) -> None:
    data = text.encode(errors="replace")
    kept = tail(data, limit=limit)
    assert len(kept.text.encode()) <= limit
    assert data.decode().endswith(kept.text)
    assert kept.truncated == (len(data) > limit or json_bytes(data) > 2 * limit)
    assert kept.truncated or kept.text == data.decode()
    more = data.decode().removesuffix(kept.text)[-1:] + kept.text
    assert not kept.truncated or len(more.encode()) > limit or json_bytes(more.encode()) > 2 * limit


def test_output_fits_the_schema_whatever_the_bytes() -> None:
    kept = tail(bytes(range(256)) * 1000)
    assert OUTPUT_BYTES - 8 < len(kept.text.encode()) <= OUTPUT_BYTES
    assert kept.truncated


def go_json(text: str) -> str:
    """Encode a text as Go's encoder does, which the API server uses."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return "".join(f"\\u{ord(c):04x}" if c in "<>&\u2028\u2029" else c for c in escaped)


@given(st.text(st.characters(codec="utf-8") | st.sampled_from('\0\x1b\n"\\<&\u2028\u2029')))
def test_the_computed_size_of_json_is_an_upper_bound(text: str) -> None:
    most = json_bytes(text.encode())
    assert len(go_json(text).encode()) <= most
    assert most == len(go_json(text.replace("\b", "\0").replace("\f", "\0")).encode())


def test_without_its_traceback_an_error_does_not_send_anybody_to_it() -> None:
    failed = withhold.without_texts(Outcome(success=False, error=ProgramFailed(traceback="KeyError: 'secret'")))
    assert failed.error is not None
    assert "secret" not in str(failed.error)
    assert "isn't kept" in failed.error.remedy
    assert "names the line" not in failed.error.remedy
