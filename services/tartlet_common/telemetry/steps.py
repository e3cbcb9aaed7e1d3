"""Makes spans of steps for a few microseconds each: a span is made when its step has ended, rate-limited.

Hundreds of steps a second run in threads that also serve, so a step's span avoids the SDK's path through context,
processors and attribute checks. `StepTracer` makes the finished `ReadableSpan` and puts it into the queue of the
process's `BatchSpanProcessor`; `export` encodes the queued spans in bulk. The sampler decides whether a trace is
recorded; the programs' spans carry its decision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_UNSET: Final = Status(StatusCode.UNSET)
DEFAULT_MAX_LINKS: Final = 128

Attributes = Mapping[str, str | int | float]


class StepSpan(ReadableSpan):
    """A finished span of a step; its links are `StepLink`s."""


class StepLink(Link):
    """A link to a program's span, made once for each program; the exporter keeps the encoded link in `encoded`."""

    def __init__(self, context: SpanContext) -> None:
        super().__init__(context)
        self.encoded: object = None


class RateLimit:
    """A token bucket that holds one second's worth of tokens, so that the first span after a pause is always taken.

    Example:
        >>> limit = RateLimit(2)
        >>> [limit.take(at_s) for at_s in (0.0, 0.1, 0.2, 0.6, 0.7)]
        [True, True, False, True, False]
    """

    __slots__ = ("_at_s", "_left", "_most", "_per_s")

    def __init__(self, per_s: float) -> None:
        """Let `per_s` spans a second through; 0: none."""
        self._per_s = per_s
        self._most = max(1.0, per_s) if per_s else 0.0
        self._left = self._most
        self._at_s = 0.0

    def take(self, now_s: float) -> bool:
        """Take a token at `now_s` of a monotonic clock; False if there is none."""
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class StepTracer:
    """Makes spans of steps under spans that already have a context, and queues them for export."""

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self._processor = processor
        self._resource = resource
        self._scope = InstrumentationScope("tartlet")
        self._ids = RandomIdGenerator()
        self.max_links: Final = min(DEFAULT_MAX_LINKS, SpanLimits().max_links or 0)
        """Programs that a step's span links to, at most; OTEL_SPAN_LINK_COUNT_LIMIT lowers the number."""

    def new_id(self) -> int:
        """Return a new id for a span."""
        return self._ids.generate_span_id()

    def record(
        self,
        name: str,
        span_id: int,
        parent: SpanContext,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        links: Sequence[StepLink] = (),
    ) -> None:
        """Queue the finished span of a step; times are nanoseconds since 1970."""
        self._processor.on_end(
            StepSpan(
                name=name,
                context=SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state),
                parent=parent,
                resource=self._resource,
                attributes=attributes,
                links=links,
                kind=SpanKind.INTERNAL,
                status=_UNSET,
                start_time=start_ns,
                end_time=end_ns,
                instrumentation_scope=self._scope,
            )
        )

    @staticmethod
    def remote(traceparent: str) -> SpanContext | None:
        """Return the remote parent that `traceparent` names, or None if it names none or its trace isn't recorded."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        trace_id, span_id, flags = (int(group, 16) for group in match.groups())
        context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
        return context if context.is_valid and context.trace_flags.sampled else None


def traceparent(parent: SpanContext, span_id: int) -> str:
    """Return the W3C trace context of a new span under `parent`, for a peer whose spans belong under the new span."""
    return f"00-{parent.trace_id:032x}-{span_id:016x}-{parent.trace_flags:02x}"
