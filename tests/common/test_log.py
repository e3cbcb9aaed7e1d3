"""What of gRPC's words reaches a role's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[import-not-found]

from tartlet_common.process.role import _log_to_stderr


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored")
def test_a_client_that_left_is_no_error_and_what_a_servicer_raises_is(capsys: pytest.CaptureFixture[str]) -> None:
    _log_to_stderr("text", "info", "runtime")
    for raised in (ExecuteBatchError("Failed"), ValueError("ours")):
        try:
            raise raised
        except Exception:
            logging.getLogger("grpc._cython.cygrpc").exception("raised by servicer method [/a/b]")
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1
    assert "ValueError: ours" in said
    assert "ExecuteBatchError" not in said
