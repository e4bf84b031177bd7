"""OpenTelemetry spans of requests, commits and windows.

They are sent if the standard variables OTEL_* enable it and `streamd-gnn[otel]` is installed. Until
`begin_spans` has found both, nothing of OpenTelemetry is imported, and no spans are created.

Attributes have the names of https://opentelemetry.io/docs/specs/semconv/, or begin with `streamd.`.
A request's path is not an attribute, since it may identify a person; its route is.
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
"""Time to send the last spans at the end of a process: short enough not to delay the end."""
CLOCK_MOVED_NS = 1_000_000
"""More than the time between two consecutive clock reads."""
PROTOCOL = "http/protobuf"
"""The only protocol of the extra's exporter."""


class Started:
    """A span in progress. Owner: its creator, who also ends it."""

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
        """Add a span inside this one. begun, ended: seconds of the monotonic clock."""
        return self._spans.add(name, begun, ended, parent=self, attributes=attributes)

    def end(self, name: str, attributes: Attributes, failed: bool) -> None:
        """Name the span and end it now. failed: whether this process failed."""
        from opentelemetry.trace import StatusCode

        self.span.update_name(name)
        self.span.set_attributes(attributes)
        if failed:
            self.span.set_status(StatusCode.ERROR)
        self.span.end()


current: ContextVar[Started | None] = ContextVar("streamd_span", default=None)
"""The span of the request that is being answered; None if spans are off."""


class Spans:
    """Creates the spans of a process. Owner: the process, until it ends."""

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
        """Add a finished span. begun, ended: seconds of the monotonic clock. links: traces of the
        span's inputs, each at the caller's span."""
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
        """The offset from the monotonic clock to wall time, nanoseconds. It stays constant until
        the wall clock is adjusted, so that consecutive spans do not overlap."""
        now = time.time_ns() - time.monotonic_ns()
        if abs(now - self._wall) > CLOCK_MOVED_NS:
            self._wall = now
        return self._wall

    def end(self) -> None:
        """Send the remaining spans, for at most END_SECONDS."""
        # Retries to an unreachable collector would delay the end of the process.
        ending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(END_SECONDS)


_active: Spans | None = None


def active() -> Spans | None:
    """The `Spans` of this process, None if spans are off."""
    return _active


def use(spans: Spans | None) -> None:
    """Set the `Spans` of this process; None switches spans off."""
    global _active
    _active = spans


def begin_spans(role: str, name: str) -> None:
    """Create spans in this process if the environment enables them and the extra is installed.

    role, name: of the process. If spans are enabled but cannot be sent, this is logged.
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

    # The exporter and the SDK read all other options from OTEL_* themselves. The provider is not
    # the global one, which would also get FastAPI's spans, with paths in their names.
    ours = {
        "service.namespace": "streamd",
        "service.name": f"streamd-{role}",
        "service.instance.id": name,
        "service.version": __version__,
    }
    # `create` prefers our attributes to the environment's, so the latter are merged again.
    resource = Resource.create(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(Spans(provider))
    logger.info("spans_are_sent")


def end_spans() -> None:
    """Send the remaining spans, and create no more."""
    if _active is not None:
        _active.end()
        use(None)


def exemplar_of(trace: Trace | None) -> dict[str, str] | None:
    """The exemplar that links a measurement to its trace; None if the trace is not sampled."""
    if trace is None or not trace.is_sampled:
        return None
    return {"trace_id": trace.trace_id, "span_id": trace.span}


def _asks_for_spans(environment: Mapping[str, str]) -> bool:
    """Whether the environment enables spans."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    has_endpoint = any(environment.get(name) for name in ENDPOINTS)
    return exporter == "otlp" or (has_endpoint and exporter == "")


def _caller(trace: Trace) -> "SpanContext":
    """The caller's span in a received trace."""
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        int(trace.trace_id, 16),
        int(trace.parent, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(trace.flags, 16)),
    )


def _within(parent: "SpanContext | None") -> "Context":
    """The context of a span's parent; an empty context for the first span of a trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if parent is None:
        return Context()
    return set_span_in_context(NonRecordingSpan(parent), Context())
