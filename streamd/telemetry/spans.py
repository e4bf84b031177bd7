"""Spans for OpenTelemetry: what a request waited for, what a commit holds, what a window took.

They are sent where the standard variables OTEL_* say so and `streamd-gnn[otel]` is installed. Until
`begin_spans` has found both, nothing of OpenTelemetry is imported, and nobody makes a span.

Attributes are named as https://opentelemetry.io/docs/specs/semconv/ has them, or begin with
`streamd.`. A request's path is not among them: it may name a person, as its route does not.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

import structlog

from streamd import __version__
from streamd.telemetry.trace import Trace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext

logger = structlog.get_logger()
Attributes = Mapping[str, str | int | float | bool]
Kind = Literal["internal", "server", "consumer"]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
END_SECONDS = 2.0
"""Time for the last spans when a process ends: less than anybody waits for its end."""
CLOCK_MOVED_NS = 1_000_000
"""More than reading two clocks one after the other takes."""
PROTOCOL = "http/protobuf"
"""The only protocol of the extra's exporter."""


class Started:
    """A span under way. Owner: whoever began it, who also ends it."""

    def __init__(self, spans: "Spans", span: "Span", parent: str = "") -> None:
        self._spans = spans
        self.span = span
        context = span.get_span_context()
        self.trace = Trace(
            trace_id=f"{context.trace_id:032x}",
            parent=parent,
            span=f"{context.span_id:016x}",
            flags=f"{context.trace_flags:02x}",
        )

    def child(
        self, name: str, begun: float, ended: float, attributes: Attributes | None = None
    ) -> "Started":
        """Add a span within this one. begun, ended: seconds of the monotonic clock."""
        return self._spans.add(name, begun, ended, parent=self, attributes=attributes)

    def end(self, name: str, attributes: Attributes, failed: bool) -> None:
        """Name the span and end it now. failed: whether it ended in an error of this side."""
        from opentelemetry.trace import StatusCode

        self.span.update_name(name)
        self.span.set_attributes(attributes)
        if failed:
            self.span.set_status(StatusCode.ERROR)
        self.span.end()


current: ContextVar[Started | None] = ContextVar("streamd_span", default=None)
"""The span of the request that is answered; None where no spans are made."""


class Spans:
    """Makes the spans of a process. Owner: the process, for as long as it runs."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("streamd", __version__)
        self._wall = 0

    def request(self, method: str, caller: Trace | None) -> Started:
        """Begin the span of a request, in its caller's trace or in a new one."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            method,
            context=_within(None if caller is None else _caller(caller)),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method},
        )
        return Started(self, span, "" if caller is None else caller.parent)

    def add(
        self,
        name: str,
        begun: float,
        ended: float,
        *,
        parent: Started | None = None,
        kind: Kind = "internal",
        links: Sequence[Trace] = (),
        attributes: Attributes | None = None,
    ) -> Started:
        """Add a span that is over. begun, ended: seconds of the monotonic clock. links: traces of
        what it deals with, each at the caller's span."""
        from opentelemetry.trace import Link, SpanKind

        wall = self._wall_ns()
        span = self._tracer.start_span(
            name,
            context=_within(None if parent is None else parent.span.get_span_context()),
            kind=SpanKind[kind.upper()],
            attributes=dict(attributes or {}),
            links=[Link(_caller(trace)) for trace in links],
            start_time=wall + int(begun * 1e9),
        )
        span.end(wall + int(ended * 1e9))
        return Started(self, span)

    def _wall_ns(self) -> int:
        """What makes wall time of the monotonic clock, nanoseconds. It stays the same until the
        wall clock moves, so that spans that follow one another do not overlap."""
        now = time.time_ns() - time.monotonic_ns()
        if abs(now - self._wall) > CLOCK_MOVED_NS:
            self._wall = now
        return self._wall

    def end(self) -> None:
        """Send what is left, for at most END_SECONDS."""
        # A collector that is away would hold up the end of the process by its retries.
        ending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(END_SECONDS)


_active: Spans | None = None


def active() -> Spans | None:
    """What makes this process' spans, None where none are made."""
    return _active


def use(spans: Spans | None) -> None:
    """Make spans by these from now on, or none."""
    global _active
    _active = spans


def begin_spans(role: str, name: str) -> None:
    """Make spans in this process, where the environment asks for them and the extra is installed.

    role, name: as of the process. What is asked for and cannot be had is logged.
    """
    if not _asks_for_spans(os.environ):
        return
    protocol = next((os.environ[v] for v in PROTOCOLS if os.environ.get(v)), PROTOCOL)
    if protocol != PROTOCOL:
        logger.warning(
            "spans_not_sent", reason=f"{protocol} is not supported", action=f"set {PROTOCOL}"
        )
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning(
            "spans_not_sent", reason=str(error), action="pip install 'streamd-gnn[otel]'"
        )
        return

    # All else that can be set, the exporter and the SDK read from OTEL_* themselves. The provider
    # is ours alone: as the global one, it would also get FastAPI's spans, which name paths.
    ours = {
        "service.namespace": "streamd",
        "service.name": f"streamd-{role}",
        "service.instance.id": name,
        "service.version": __version__,
    }
    # `create` lets ours win over the environment's, so those are merged once more.
    resource = Resource.create(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(Spans(provider))
    logger.info("spans_are_sent")


def end_spans() -> None:
    """Send what is left, and make no more spans."""
    if _active is not None:
        _active.end()
        use(None)


def exemplar_of(trace: Trace | None) -> dict[str, str] | None:
    """The exemplar that leads from a measurement to its trace, None where the trace is not kept."""
    if trace is None or not trace.is_sampled:
        return None
    return {"trace_id": trace.trace_id, "span_id": trace.span}


def _asks_for_spans(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    has_endpoint = any(environment.get(name) for name in ENDPOINTS)
    return exporter == "otlp" or (has_endpoint and exporter == "")


def _caller(trace: Trace) -> "SpanContext":
    """The span that a trace was received from."""
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        int(trace.trace_id, 16),
        int(trace.parent, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(trace.flags, 16)),
    )


def _within(parent: "SpanContext | None") -> "Context":
    """The context of a span's parent; one without any for the begin of a trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if parent is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(parent), Context())
