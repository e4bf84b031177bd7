"""The poll thread: poll, decode, merge, commit; nothing else in the product writes to the log."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import structlog

from streamd.clock import Clock
from streamd.errors import DataLossError, KafkaError
from streamd.events import EventBatch, Gap, Key, Position, Progress, Schema, empty_batch
from streamd.ingest.block import Block, empty_block, joined, renumber_keys
from streamd.ingest.checks import rules_of
from streamd.ingest.columns import BatchBuilder, as_json
from streamd.ingest.consumer import KafkaSource, OutOfRange
from streamd.ingest.deadletter import REASONS, DeadLetter, DeadLetters
from streamd.ingest.decode import Decoder
from streamd.ingest.merge import Merger, not_yet_appended
from streamd.ingest.origins import Origins
from streamd.ingest.suspects import Suspects
from streamd.ingest.watch import missing_topic
from streamd.settings import Settings
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
MAX_COMMIT_EVENTS = 20_000
POLL_SECONDS = 0.2
MIN_POLL_SECONDS = 0.005
REPORT_SECONDS = 1.0
RETRY_SECONDS = 0.5
PORTION_BYTES = 262_144
"""Bytes of records decoded at a time, but for a larger record: a dead letter each two of them is
much."""
TELL_AGAIN_SECONDS = 300.0
"""A reason to wait that lasts is told once, then so often."""
SILENT_SECONDS = 5.0
"""A partition with more to read that sends nothing for so long, although the broker answers, holds
nobody back: it has an open transaction, or no leader. An election takes about as long."""


class Log(Protocol):
    """What ingest needs of the log; `streamd.segments.log.LogWriter` is it."""

    keys: dict[Key, int]
    schema: Schema

    @property
    def watermark(self) -> int: ...

    @property
    def num_edges(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def newest_us(self) -> int | None: ...

    def has_edge(self, src: int, dst: int, time_us: int) -> bool: ...

    @property
    def progress(self) -> Progress: ...

    def remaining_rows(self) -> int: ...

    def commit(
        self, batch: EventBatch, progress: Progress, watermark: int, gaps: Sequence[Gap] = ()
    ) -> None: ...


class IngestLoop:
    """Runs until told to stop; a restart continues at the journal's positions. Owner: the ingest
    process."""

    def __init__(
        self,
        settings: Settings,
        log_writer: Log,
        letters: DeadLetters,
        clock: Clock,
        beat: Heartbeat,
        housekeep: Callable[[], None] = lambda: None,
    ) -> None:
        """housekeep: a little work on the log between two commits, called about once a second."""
        s = settings.ingest
        self._settings = settings
        self._log = log_writer
        self._letters = letters
        self._clock = clock
        self._beat = beat
        self._keep_house = housekeep
        self._decoder = Decoder(rules_of(settings, log_writer.schema))
        self._builder = BatchBuilder(
            log_writer.schema, log_writer.keys, s.max_nodes, s.late_policy, log_writer.has_edge
        )
        self._width_us = settings.windows.width_seconds * 1_000_000
        self._max_ahead_us = int(s.max_ahead_seconds * 1e6)
        self._nothing = empty_block(log_writer.schema.edge_feature_dim)
        self._num_letters = 0
        self._closed_until = 0
        self._stalled = False
        self._paused: list[int] = []
        self._resume: list[Position] = []
        self._told: dict[str, float] = {}
        metrics.begin_at_zero(metrics.dead_letters, REASONS)
        if log_writer.newest_us is not None:
            self._tell_log()

    def run(self, stop: threading.Event) -> None:
        """Connect (waiting for broker and topics), then poll until `stop` is set; the last events
        are committed."""
        source = self._connect(stop)
        if source is None:
            return
        try:
            while not stop.is_set():
                if not self._begin(source):
                    stop.wait(RETRY_SECONDS)
                    self._rediscover(source, stop)
                    continue
                while not stop.is_set() and self._step(source):
                    pass
                if not stop.is_set():
                    self._rediscover(source, stop)
            if not self._resume:
                return
            while self._commit(source, final=True):
                pass
        finally:
            source.close()

    def _connect(self, stop: threading.Event) -> KafkaSource | None:
        source = None
        while not stop.is_set():
            self._beat.touch("connecting")
            try:
                source = source or KafkaSource(self._settings.kafka, self._settings.ingest)
                if self._has_topics(source):
                    return source
            except KafkaError as error:
                self._tell_seldom("broker_unavailable", str(error))
            stop.wait(1.0)
        if source is not None:
            source.close()
        return None

    def _rediscover(self, source: KafkaSource, stop: threading.Event) -> None:
        """The partitions are others than before, or Kafka lost some: what was buffered is read
        again from the log's end."""
        while not stop.is_set():
            try:
                if self._has_topics(source):
                    return
            except KafkaError as error:
                self._tell_seldom("broker_unavailable", str(error))
            self._beat.touch("connecting")
            stop.wait(1.0)

    def _has_topics(self, source: KafkaSource) -> bool:
        """Whether all topics are there; of each that is not, say how to make it."""
        missing = source.discover()
        for name in missing:
            self._tell_seldom(
                "waiting_for_topic",
                missing_topic(name, self._settings.kafka.bootstrap_servers),
                name,
            )
        return not missing

    def _tell_seldom(self, event: str, error: str, about: str = "") -> None:
        """Log why ingest waits, once and then every TELL_AGAIN_SECONDS, until it has begun again."""
        now = self._clock.monotonic()
        if now - self._told.get(event + about, -TELL_AGAIN_SECONDS) >= TELL_AGAIN_SECONDS:
            self._told[event + about] = now
            logger.warning(event, error=error)

    def _begin(self, source: KafkaSource) -> bool:
        """Seek to the stored positions; False while the broker does not answer. Raises:
        DataLossError."""
        try:
            begun, gaps = source.begin(self._log.progress)
        except DataLossError:
            raise
        except KafkaError as error:
            self._tell_seldom("broker_unavailable", str(error))
            return False
        self._told.clear()
        if gaps:
            self._log.commit(
                empty_batch(self._log.schema), source.progress(begun), self._log.watermark, gaps
            )
            metrics.gaps.inc(len(gaps))
            metrics.lost_records.inc(sum(max(0, g.end - g.first) for g in gaps))
        dim = self._log.schema.edge_feature_dim
        self._merger = Merger(len(begun), self._settings.ingest.merge_wait_seconds, dim)
        self._suspects = [Suspects(self._max_ahead_us, dim) for _ in begun]
        self._origins = [Origins() for _ in begun]
        for number, position in enumerate(begun):
            self._merger.start(number, position)
        for tp in source.partitions:
            metrics.silent_partitions.labels(tp.topic, str(tp.partition))
        self._resume = list(begun)
        self._stored = [Position(-1)] * len(begun)
        self._stamps_ms = [0] * len(begun)
        now = self._clock.monotonic()
        self._heard = [now] * len(begun)
        self._silent = [False] * len(begun)
        self._last_commit = self._last_event = self._last_report = now
        logger.info(
            "ingest_started",
            partitions=len(begun),
            edges=self._log.num_edges,
            watermark=self._log.watermark,
        )
        return True

    def _step(self, source: KafkaSource) -> bool:
        """One turn. Returns: False where the source must begin again."""
        if self._clock_is_behind():
            return True
        if (
            self._merger.num_buffered
            and self._merger.all_at_end
            and (wait := self._until_commit()) > 0
        ):
            self._clock.sleep(min(wait, POLL_SECONDS))  # what comes meanwhile is polled together
        try:
            polled = source.poll(self._patience(), MAX_COMMIT_EVENTS)
        except OutOfRange:
            logger.warning("offset_out_of_range")
            return False
        except KafkaError as error:
            self._last_event = self._clock.monotonic()
            logger.warning("broker_unavailable", error=str(error))
            self._beat.touch(
                "broker unavailable", edges=self._log.num_edges, watermark=self._log.watermark
            )
            self._clock.sleep(RETRY_SECONDS)
            return True
        now = self._clock.monotonic()
        for number in range(len(source.partitions)):
            self._take(source, number, polled.get(number, ()), now)
        self._paused = self._merger.paused()
        source.pause(self._paused)
        if now - self._last_commit >= self._settings.ingest.commit_interval_seconds:
            while self._commit(source):
                self._beat_now(source)
        if now - self._last_report >= REPORT_SECONDS:
            self._last_report = now
            self._report(source)
        self._close_idle_window(source, now)
        if source.changed:
            logger.info("topics_changed")
            return False
        return True

    def _clock_is_behind(self) -> bool:
        """Whether the log proves the wall clock wrong; then nothing is read until it is right
        again, since every event would be refused as being ahead of it."""
        known_us = max(self._log.newest_us or 0, self._closed_until)
        behind_us = known_us - self._clock.now_us()
        wrong = behind_us > self._max_ahead_us
        metrics.clock_behind.set(behind_us / 1e6 if wrong else 0)
        if wrong:
            if not self._stalled:
                logger.error(
                    "clock_behind_the_log",
                    seconds=round(behind_us / 1e6),
                    action="set this machine's clock; ingest waits for it and reads nothing meanwhile",
                )
            self._last_event = self._clock.monotonic()
            self._beat.touch(
                "waiting for the clock", edges=self._log.num_edges, watermark=self._log.watermark
            )
            self._clock.sleep(POLL_SECONDS)
        elif self._stalled:
            logger.info("clock_is_right_again")
        self._stalled = wrong
        return wrong

    def _patience(self) -> float:
        """Seconds a poll may wait: not beyond the moment when a buffered event may be committed."""
        if not self._merger.num_buffered:
            return POLL_SECONDS
        due = self._merger.next_due(self._clock.monotonic())
        return min(POLL_SECONDS, max(MIN_POLL_SECONDS, self._until_commit(), due))

    def _until_commit(self) -> float:
        """Seconds until the next commit may be made."""
        return (
            self._last_commit
            + self._settings.ingest.commit_interval_seconds
            - self._clock.monotonic()
        )

    def _take(self, source: KafkaSource, number: int, records: Sequence[Any], now: float) -> None:
        """Decode what a poll brought from one partition, judge it, and hand it to the merge."""
        events = self._decoded(source, number, records, now) if records else self._nothing
        suspects = self._suspects[number]
        judged = suspects.judge(events, now)
        for row, seconds in enumerate(judged.ahead_seconds):
            self._refuse(
                source,
                judged.refused,
                row,
                "time_ahead",
                f"the event is {seconds:,.0f} s further ahead of its record's timestamp than all others",
            )
        position = source.position(number)
        held = suspects.first_held
        at_end = position >= source.end(number) or self._is_silent(
            source, number, bool(records), now
        )
        self._merger.push(number, judged.taken, held or (position, 0), at_end and held is None, now)

    def _decoded(
        self, source: KafkaSource, number: int, records: Sequence[Any], now: float
    ) -> Block:
        """The events of records that the log does not hold yet; what does not fit becomes a dead
        letter."""
        self._origins[number].add(records)
        blocks: list[Block] = []
        for portion in portions(records):
            if blocks:
                self._beat_now(source)
            blocks.append(self._decoded_portion(source, number, portion))
        metrics.ingest_bytes.inc(sum([max(0, r.serialized_value_size) for r in records]))
        self._stamps_ms[number] = records[-1].timestamp
        self._last_event = now
        return joined(blocks)

    def _decoded_portion(self, source: KafkaSource, number: int, records: Sequence[Any]) -> Block:
        resume = self._resume[number]
        events, rejected = self._decoder.decode(records, number, self._clock.now_us())
        if records[0].offset <= max([resume.offset, *(a[0] for a in resume.ahead[-1:])]):
            events = events.take(not_yet_appended(events.rows, resume))
            rejected = [
                r
                for r in rejected
                if (r.offset, r.index) >= (resume.offset, resume.index) or r.index < 0
            ]
        for r in rejected:
            self._add_letter(
                source, number, r.offset, r.index, r.reason, r.error, r.raw, r.content_type
            )
        return events

    def _is_silent(self, source: KafkaSource, number: int, heard: bool, now: float) -> bool:
        """Whether a partition with more to read sent nothing for a while, although it was polled
        and the broker answers."""
        if heard or source.position(number) >= source.end(number) or number in self._paused:
            self._heard[number], self._silent[number] = now, False
        elif not self._silent[number] and now - self._heard[number] >= SILENT_SECONDS:
            self._silent[number] = source.answered_at >= self._heard[number] + SILENT_SECONDS
            if self._silent[number]:
                tp = source.partitions[number]
                metrics.silent_partitions.labels(tp.topic, str(tp.partition)).inc()
                logger.warning(
                    "partition_silent",
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=source.position(number),
                    meaning="an open transaction or no leader; the others go on without it",
                )
        return self._silent[number]

    def _refuse(
        self, source: KafkaSource, events: Block, row: int, reason: str, error: str
    ) -> None:
        """Make one event of a block a dead letter."""
        r = events.rows[row]
        raw = as_json(events, row, self._decoder.keys.keys, self._settings.stream.time_unit)
        self._add_letter(
            source, int(r["source"]), int(r["offset"]), int(r["item"]), reason, error, raw
        )

    def _add_letter(
        self,
        source: KafkaSource,
        number: int,
        offset: int,
        index: int,
        reason: str,
        error: str,
        raw: bytes,
        content_type: str = "",
    ) -> None:
        """A dead letter of partition `number`, with the key and timestamp of the record it came in."""
        tp = source.partitions[number]
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
        )
        self._letters.add(letter)
        self._num_letters += 1
        metrics.dead_letters.labels(letter.reason).inc()
        if self._num_letters <= 10:
            logger.warning(
                "dead_letter",
                topic=letter.topic,
                partition=letter.partition,
                offset=letter.offset,
                index=letter.index,
                reason=letter.reason,
                error=letter.error[:200],
            )

    def _commit(self, source: KafkaSource, final: bool = False) -> bool:
        """Commit what may go. Returns: whether as much as one commit may hold went, so that more
        may wait."""
        now = self._clock.monotonic()
        limit = min(self._log.remaining_rows(), MAX_COMMIT_EVENTS)
        events = self._merger.release(now, limit)
        positions = [self._merger.position(i) for i in range(len(source.partitions))]
        moved = positions != self._stored
        if not len(events) and not (
            moved
            and (final or now - self._last_commit >= REPORT_SECONDS or self._stored[0].offset < 0)
        ):
            return False
        batch, watermark = self._build(source, events)
        self._letters.flush()
        with metrics.commit_seconds.time():
            self._log.commit(batch, source.progress(positions), watermark)
        self._stored = positions
        self._last_commit = now
        for origins, position in zip(self._origins, positions, strict=True):
            origins.forget(position.offset)
        source.publish(positions)
        metrics.events.labels("edge").inc(batch.num_edges)
        metrics.events.labels("label").inc(len(batch.label_node_L))
        metrics.events.labels("node").inc(len(batch.node_F))
        metrics.events.labels("delete").inc(len(batch.deletions_X))
        metrics.clamped.inc(len(batch.late_edge))
        metrics.last_commit.set(self._clock.now_us() / 1e6)
        self._tell_log()
        self._beat_now(source)
        return len(events) == limit

    def _tell_log(self) -> None:
        metrics.log_edges.set(self._log.num_edges)
        metrics.watermark.set(self._log.watermark / 1e6)

    def _build(self, source: KafkaSource, events: Block) -> tuple[EventBatch, int]:
        """The columns of a commit, and the watermark after it; what has no place in the log becomes
        a dead letter."""
        keys = self._decoder.keys
        batch, watermark, refused = self._builder.build(
            events, keys.keys, keys.epoch, self._log.watermark, self._log.num_nodes
        )
        for r in refused:
            self._refuse(source, events, r.row, r.reason, r.error)
        if keys.is_full:
            waiting = [*self._merger.buffers(), *(s.held for s in self._suspects)]
            renumber_keys(waiting, keys.shrink)
        return batch, watermark

    def _close_idle_window(self, source: KafkaSource, now: float) -> None:
        """After a quiet time raise the watermark to the open window's end, so that it is learned
        (DESIGN section 3).

        Not before the wall clock has passed that end: an event of the window may still come.
        """
        timeout = self._settings.ingest.idle_timeout_seconds
        newest = self._log.newest_us
        if (
            not timeout
            or newest is None
            or now - self._last_event < timeout
            or self._merger.num_buffered
            or not self._merger.all_at_end
        ):
            return
        end = (newest // self._width_us + 1) * self._width_us
        if self._log.watermark >= end or self._clock.now_us() < end:
            return
        self._last_event = now
        if not source.confirm_all_read():
            return
        positions = [self._merger.position(i) for i in range(len(source.partitions))]
        self._log.commit(empty_batch(self._log.schema), source.progress(positions), end)
        self._stored = positions
        self._closed_until = end
        metrics.watermark.set(end / 1e6)
        metrics.idle_windows.inc()
        logger.info("idle_window_closed", watermark=end)
        self._beat_now(source)

    def _report(self, source: KafkaSource) -> None:
        for number, tp in enumerate(source.partitions):
            lag = max(0, source.end(number) - self._merger.position(number).offset)
            metrics.lag.labels(tp.topic, str(tp.partition)).set(lag)
            behind = (
                self._clock.now_us() / 1e6 - self._stamps_ms[number] / 1e3
                if lag and self._stamps_ms[number]
                else 0.0
            )
            metrics.lag_seconds.labels(tp.topic, str(tp.partition)).set(max(0.0, behind))
        self._keep_house()
        self._beat_now(source)

    def _beat_now(self, source: KafkaSource) -> None:
        lag = sum(
            max(0, source.end(i) - self._merger.position(i).offset)
            for i in range(len(source.partitions))
        )
        self._beat.touch(
            "running",
            edges=self._log.num_edges,
            watermark=self._log.watermark,
            lag=lag,
            dead_letters=self._num_letters,
            clamped=int(metrics.clamped_total()),
        )


def portions(records: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Records in runs of at most `PORTION_BYTES`, or one larger record."""
    first = 0
    size = 0
    for at, record in enumerate(records):
        size += max(0, record.serialized_value_size)
        if size > PORTION_BYTES and at > first:
            yield records[first:at]
            first = at
            size = max(0, record.serialized_value_size)
    yield records[first:]
