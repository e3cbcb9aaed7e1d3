"""What of gRPC's words reaches a role's log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[import-not-found]
from opentelemetry import context

from tartlet_common.process.role import _log_to_stderr
from tartlet_common.telemetry import telemetry


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


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_within_a_trace_names_it(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    _log_to_stderr(form, "info", "gateway")
    token = context.attach(telemetry.extract({"traceparent": f"00-{trace}-b7ad6b7169203331-01"}))
    logging.getLogger("a").info("within")
    context.detach(token)
    logging.getLogger("a").info("outside")
    within, outside = capsys.readouterr().err.splitlines()
    assert trace in within
    assert "trace" not in outside
    if form == "json":
        assert json.loads(within)["trace_id"] == trace
