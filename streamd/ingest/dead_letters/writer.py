"""Makes dead letters of refused events, with key and timestamp of their records."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog
from kafka import TopicPartition

from streamd.clock import Clock
from streamd.decode.block import Block
from streamd.decode.wire import OWN_EVENT_US
from streamd.events import Key, Position, Schema
from streamd.ingest.dead_letters.origins import Origins
from streamd.ingest.dead_letters.sinks import REASONS, DeadLetter, DeadLetters
from streamd.ingest.order.batch_builder import Refused, as_json
from streamd.telemetry import metrics

logger = structlog.get_logger()
NO_IDS: Mapping[str, str] = {}
MAX_LOGGED = 10
"""Maximum number of letters of one reason that a process logs: a producer of invalid events only
would fill the log."""

MAX_ERRORS = 1_000
"""Maximum different errors that are counted."""
MAX_ERROR = 200
"""Characters of an error that are logged or shown: it may hold a value of the event."""


class LetterWriter:
    """Writes the dead letters of all partitions to `store`. Owner: the poll thread."""

    def __init__(
        self,
        store: DeadLetters,
        clock: Clock,
        schema: Schema,
        time_unit: str,
        mapped: Collection[str] = (),
    ) -> None:
        """mapped: topics with records that a source maps to events."""
        self.store = store
        self._mapped = mapped
        self.num_letters = 0
        self._num_records = 0
        self._errors: Counter[str] = Counter()
        """Number of each of the first MAX_ERRORS errors, cut to MAX_ERROR characters."""
        self._counts: Counter[str] = Counter()
        self._begun = clock.monotonic()
        self._clock = clock
        self._schema = schema
        self._time_unit = time_unit
        self._partitions: Sequence[TopicPartition] = ()
        self._topic_ids: Mapping[str, str] = {}
        self._origins: list[Origins] = []
        # A series that begins at 1 shows Prometheus no increase for its first letter.
        metrics.begin_at_zero(metrics.dead_letters, REASONS)

    def begin(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, str] = NO_IDS
    ) -> None:
        """Start with these partitions, and forget earlier records. topic_ids: Kafka's ids by topic,
        as far as known."""
        self._partitions = partitions
        self._topic_ids = topic_ids
        self._origins = [Origins() for _ in partitions]

    def remember(self, number: int, records: Sequence[Any]) -> None:
        """Keep the origins of records of partition `number` before they are decoded."""
        self._origins[number].add(records)
        self._num_records += len(records)

    def summary(self) -> dict[str, Any]:
        """Fields of the heartbeat, counted since the start of this process: seconds, records read,
        letters, and the most frequent error, empty without letters."""
        errors = self._errors.most_common(2)
        mostly = errors[0][0] if errors else ""
        if len(errors) > 1:
            is_most = errors[0][1] > errors[1][1]
            mostly = f"{'most often' if is_most else 'for example'} {mostly}"
        return {
            "reading_seconds": self._clock.monotonic() - self._begun,
            "records": self._num_records,
            "dead_letters": self.num_letters,
            "refused_mostly": mostly,
        }

    def forget(self, positions: Sequence[Position]) -> None:
        """Drop the origins of records before the committed positions, one position a partition."""
        for origins, position in zip(self._origins, positions, strict=True):
            origins.forget(position.offset)

    def refuse(self, events: Block, refused: Refused, keys: Sequence[Key]) -> None:
        """Make one event of a block a dead letter, or count it if it is skipped. keys: list that
        the block's key numbers index."""
        event = events.rows[refused.row]
        topic = self._partitions[int(event["source"])].topic
        if refused.is_skipped:
            metrics.skipped.labels(topic).inc()
            return
        is_mapped = topic in self._mapped
        self.add(
            int(event["source"]),
            int(event["offset"]),
            int(event["item"]),
            refused.reason,
            refused.error,
            as_json(
                events, refused.row, keys, "us" if is_mapped else self._time_unit, self._schema
            ),
            # On a replay this header marks the value as streamd's own event.
            OWN_EVENT_US if is_mapped else "",
        )

    def add(
        self,
        number: int,
        offset: int,
        index: int,
        reason: str,
        error: str,
        raw: bytes,
        content_type: str = "",
    ) -> None:
        """Write a dead letter of partition `number`. The other arguments: as in `DeadLetter`."""
        tp = self._partitions[number]
        # A replay needs the record's key and timestamp, which the event itself does not have.
        key, timestamp_ms = self._origins[number].of(offset)
        letter = DeadLetter(
            topic=tp.topic,
            partition=tp.partition,
            offset=offset,
            index=index,
            reason=reason,
            error=error,
            time_us=self._clock.now_us(),
            value=raw,
            content_type=content_type,
            key=key,
            timestamp_ms=timestamp_ms,
            topic_id=self._topic_ids.get(tp.topic, ""),
        )
        self.store.add(letter)

        # Count every letter, but log only the first few of each reason.
        self.num_letters += 1
        self._counts[letter.reason] += 1
        error = letter.error[:MAX_ERROR]
        if error in self._errors or len(self._errors) < MAX_ERRORS:
            self._errors[error] += 1
        metrics.dead_letters.labels(letter.reason).inc()
        if self._counts[letter.reason] <= MAX_LOGGED:
            logger.warning(
                "dead_letter",
                topic=letter.topic,
                partition=letter.partition,
                offset=letter.offset,
                index=letter.index,
                reason=letter.reason,
                error=error,
            )
        if self._counts[letter.reason] == MAX_LOGGED:
            logger.warning(
                "dead_letters_counted_only",
                reason=letter.reason,
                logged=MAX_LOGGED,
                meaning="this process logs no further dead letters of this reason, but counts them",
                metric=f'streamd_dead_letters_total{{reason="{letter.reason}"}}',
                action=f"`streamd deadletter list --reason {letter.reason}` shows them",
            )

    def flush(self) -> None:
        """Make all letters written so far durable. Raises: DiskError, KafkaError."""
        self.store.flush()
