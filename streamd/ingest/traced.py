"""Links the span of a commit to the traces of its records."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streamd.events import EventBatch, Position
from streamd.telemetry import metrics, spans
from streamd.telemetry.trace import Trace, trace_of

MAX_LINKS = 128
"""Maximum number of links of a span, as in OpenTelemetry's SDKs; the attribute
`streamd.traced_records` counts all."""
MAX_WAITING = 1_024
"""Maximum number of traced records of a partition that wait for their commit; older ones are
dropped."""


class TracedRecords:
    """Remembers the `traceparent` of records from their poll to their commit. Owner: the loop.

    If tracing is off, it remembers nothing.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[tuple[int, Trace]]] = {}

    def begin(self) -> None:
        """Forget all records: partition numbers may change with the assignment."""
        self._waiting.clear()

    def remember(self, number: int, records: Sequence[Any]) -> None:
        """Remember the traces of records of partition `number`, in order of their offsets."""
        if spans.active() is None:
            return
        for record in records:
            for name, value in record.headers or ():
                if name == "traceparent" and value:
                    trace = trace_of([value.decode("latin-1")])
                    if trace is not None:
                        waiting = self._waiting.setdefault(number, deque(maxlen=MAX_WAITING))
                        waiting.append((record.offset, trace))
                    break

    @contextmanager
    def commit(
        self, topics: Sequence[str], positions: Sequence[Position], batch: EventBatch
    ) -> Iterator[None]:
        """Measure the commit in the `with` block, and make its span.

        positions: of each partition after the commit.
        """
        begun = time.monotonic()
        span = None
        try:
            yield
            if (made := spans.active()) is not None:
                span = self._span(made, begun, topics, positions, batch)
        finally:
            exemplar = spans.exemplar_of(None if span is None else span.trace)
            metrics.commit_seconds.observe(time.monotonic() - begun, exemplar)

    def _span(
        self,
        made: spans.Spans,
        begun: float,
        topics: Sequence[str],
        positions: Sequence[Position],
        batch: EventBatch,
    ) -> spans.Started:
        # The traced records before the new positions.
        passed = []
        for number, waiting in self._waiting.items():
            while waiting and waiting[0][0] < positions[number].offset:
                passed.append(waiting.popleft()[1])

        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "commit",
            "messaging.batch.message_count": batch.num_edges,
            "streamd.traced_records": len(passed),
        }
        if len(set(topics)) == 1:
            attributes["messaging.destination.name"] = topics[0]
        return made.add(
            f"commit {topics[0]}" if len(set(topics)) == 1 else "commit",
            begun,
            time.monotonic(),
            kind="consumer",
            links=passed[-MAX_LINKS:],
            attributes=attributes,
        )
