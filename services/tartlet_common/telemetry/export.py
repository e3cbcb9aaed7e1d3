"""OTLP exporters that disturb serving threads little: spans are encoded cheaply and a few at a time.

At the end of a process an exporter is told to `leave`, so that a receiver that is gone delays the end only shortly.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from time import sleep
from typing import Any, Final, cast

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusMessage
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from tartlet_common.telemetry.steps import Attributes, StepLink, StepSpan

_CHUNK: Final = 32
"""Spans that are encoded before a pause in which other threads get the interpreter, which by default takes 5 ms."""
_PAUSE_S: Final = 0.0005
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_UNSET: Final = StatusMessage()
_REMOTE: Final = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


LEAVING_S: Final = 0.6
"""What a message may take once the process leaves: less than the pause before the library sends it again."""


class Leaving:
    """Ends an exporter: after `leave`, each message is sent once, and no message after one that failed."""

    _timeout: float
    _result: Any
    _shutdown_in_progress: Event
    _leaving = False
    _gone = False

    def leave(self) -> None:
        """Stop retrying, because the process ends."""
        self._leaving = True
        self._timeout = min(self._timeout, LEAVING_S)
        self._shutdown_in_progress.set()  # ends the pause of a retry

    def _export(self, data: Any) -> Any:
        result: Any = self._result.FAILURE if self._gone else super()._export(data)  # type: ignore[misc]
        self._gone = self._leaving and result is self._result.FAILURE
        return result


class SpanExporter(Leaving, OTLPSpanExporter):
    """Exports spans as OTLP over gRPC; the standard variables apply, only the encoding is replaced."""

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        request = ExportTraceServiceRequest()
        for start in range(0, len(data), _CHUNK):
            if start:
                sleep(_PAUSE_S)
            request.MergeFrom(encode(data[start : start + _CHUNK]))
        return request


class MetricExporter(Leaving, OTLPMetricExporter):
    """Exports metrics as OTLP over gRPC; the standard variables apply."""


def encode(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Encode spans as an export request; spans of steps come last, in an entry of their own."""
    steps = [span for span in spans if isinstance(span, StepSpan)]
    request = encode_spans([span for span in spans if not isinstance(span, StepSpan)])
    if steps:
        # the library encodes one span, for the resource and scope that all of them share
        entry = encode_spans(steps[:1]).resource_spans[0]
        del entry.scope_spans[0].spans[:]
        entry.scope_spans[0].spans.extend(map(_step, steps))
        request.resource_spans.append(entry)
    return request


def _step(span: StepSpan) -> SpanMessage:
    context, parent = span.context, span.parent
    assert context is not None
    assert parent is not None
    return SpanMessage(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        parent_span_id=parent.span_id.to_bytes(8, "big"),
        trace_state=context.trace_state.to_header(),
        flags=_flags(parent),
        name=span.name,
        kind=SpanMessage.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_time or 0,
        end_time_unix_nano=span.end_time or 0,
        attributes=_attributes(cast("Attributes", span.attributes)),
        links=[_link(cast("StepLink", link)) for link in span.links],
        status=_UNSET,
    )


def _link(link: StepLink) -> SpanMessage.Link:
    if link.encoded is None:
        context = link.context
        link.encoded = SpanMessage.Link(
            trace_id=context.trace_id.to_bytes(16, "big"),
            span_id=context.span_id.to_bytes(8, "big"),
            flags=_flags(context),
        )
    return cast("SpanMessage.Link", link.encoded)


def _flags(context: SpanContext) -> int:
    return _REMOTE if context.is_remote else _LOCAL


def _attributes(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: str | int | float) -> AnyValue:  # noqa: PYI041 - each kind is encoded differently
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value)
