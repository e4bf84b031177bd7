"""The loop of the ingest role: poll, decode, merge, commit.

It is the only writer of the log while a daemon runs.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from streamd.clock import Clock
from streamd.decode.block import Block, empty_block, joined, renumber_keys
from streamd.decode.decoder import make_decoder
from streamd.decode.prepare import prepare
from streamd.errors import DataLossError, KafkaError, SchemaRegistryError
from streamd.events import EventBatch, empty_batch
from streamd.ingest.assignment import Assignment
from streamd.ingest.clock_watch import ClockWatch
from streamd.ingest.dead_letters.sinks import DeadLetters
from streamd.ingest.dead_letters.writer import LetterWriter
from streamd.ingest.event_log import Log
from streamd.ingest.first_times import FirstTimes
from streamd.ingest.kafka.broker_wait import MISSING_STATE, BrokerWait
from streamd.ingest.kafka.consumer import KafkaSource, OffsetsLost
from streamd.ingest.kafka.lag import report_lag, unread
from streamd.ingest.kafka.offset_commits import PublishedOffsets
from streamd.ingest.kafka.safe_records import portions, value_sizes
from streamd.ingest.order.batch_builder import BatchBuilder, Refused
from streamd.ingest.order.runs import lacks_events
from streamd.ingest.traced import TracedRecords
from streamd.number_texts import span
from streamd.settings.loading import Settings
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import HELD_STATE, Heartbeat

logger = structlog.get_logger()
MAX_COMMIT_EVENTS = 20_000
"""Maximum number of events per commit and of records per poll: some megabytes, so that a stop is
quick."""
POLL_SECONDS = 0.2
"""Longest wait of a poll: between polls the loop checks for a stop and for a due commit."""
MIN_POLL_SECONDS = 0.005
"""Shortest wait of a poll, so that the loop does not spin until a commit that is due soon."""
FIRST_COMMIT_SECONDS = 0.05
"""Wait before an assignment's first commit, in addition to the commit interval, for the other
partitions of a new stream: the merge does not wait for any that never had an event."""
REPORT_SECONDS = 1.0
"""Interval of lag metrics, housekeeping, and commits that only move positions."""
RETRY_SECONDS = 0.5
"""Pause before a retry after broker or schema registry did not answer."""
CONNECT_SECONDS = 1.0
"""Pause between attempts to find broker and topics, which take several requests each."""


class IngestLoop:
    """Reads Kafka into the log until it is stopped. Owner: the ingest process.

    A restart continues at the positions in the journal. `begin` makes the state of one assignment
    of partitions.
    """

    def __init__(
        self,
        settings: Settings,
        log_writer: Log,
        letters: DeadLetters,
        clock: Clock,
        beat: Heartbeat,
        housekeep: Callable[[], None] = lambda: None,
        doing: str = "running",
    ) -> None:
        """Args: housekeep: a short step of maintenance of the log, called about once a second
        between commits. doing: the heartbeat's state while all is well."""
        s = settings.ingest
        self._settings = settings
        self._log = log_writer
        self._decoder = make_decoder(settings, log_writer.schema)
        mapped = self._decoder.mapped.keys()
        w = log_writer
        self._traced = TracedRecords()
        self._letters = LetterWriter(letters, clock, w.schema, settings.stream.time_unit, mapped)
        self._clock = clock
        self._beat = beat
        self._housekeep = housekeep
        self._doing = doing
        self._builder = BatchBuilder(w.schema, w.keys, s.max_nodes, s.late_policy, w.count_edges)
        self._width_us = settings.windows.width_seconds * 1_000_000
        self._max_ahead_us = int(s.max_ahead_seconds * 1e6)
        self._clock_watch = ClockWatch(clock, self._max_ahead_us)
        self._first_times = FirstTimes(log_writer, self._decoder, beat, s.accept_first_times)
        self._nothing = empty_block(w.schema.edge_feature_dim)
        self._closed_until = 0
        self._paused: list[int] = []
        self._held: Mapping[int, Sequence[Any]] = {}
        self._assignment: Assignment | None = None
        self._waiting = BrokerWait(settings.kafka, clock)
        self._offsets = PublishedOffsets(log_writer)
        if log_writer.newest_us is not None:
            self._report_log()

    def run(self, stop: threading.Event) -> None:
        """Wait for broker and topics, poll until `stop` is set, then commit the remaining
        events."""
        source = self._connect(stop)
        if source is None:
            return
        try:
            # Each round is one assignment of partitions; it ends when they change.
            while not stop.is_set():
                if not self.begin(source):
                    self._offsets.wait(stop, RETRY_SECONDS)
                    self._rediscover(source, stop)
                    continue
                while not stop.is_set() and self.step(source):
                    pass
                if not stop.is_set():
                    self._rediscover(source, stop)

            # Commit the events that the merge releases; without an assignment there are none.
            if self._assignment is None:
                return
            while self.commit(source, final=True):
                pass
        finally:
            source.close()

    def _connect(self, stop: threading.Event) -> KafkaSource | None:
        """Wait for the broker and all topics; None if `stop` is set first."""
        source = None
        why: dict[str, Any] = {}
        while not stop.is_set():
            self._beat.touch("connecting", **why)
            try:
                source = source or KafkaSource(self._settings.kafka, self._settings.ingest)
                why = self._waiting.for_topics(source.discover(), self._log.progress.positions)
                if not why:
                    return source
            except KafkaError as error:
                why = self._waiting.for_broker(error)
            self._offsets.wait(stop, CONNECT_SECONDS)
        if source is not None:
            source.close()
        return None

    def _rediscover(self, source: KafkaSource, stop: threading.Event) -> None:
        """Discover the partitions again: after they changed, after Kafka lost records, or if the
        broker did not answer `begin`.

        Buffered events are not committed but read again: the old positions may belong to a topic
        that was deleted and created again.
        """
        self._assignment = None
        while not stop.is_set():
            try:
                why = self._waiting.for_topics(source.discover(), self._log.progress.positions)
                if not why:
                    return
            except KafkaError as error:
                why = self._waiting.for_broker(error)
            self._beat.touch("connecting", **why)
            self._offsets.wait(stop, CONNECT_SECONDS)

    def begin(self, source: KafkaSource) -> bool:
        """Seek to the stored positions and make the state of this assignment of partitions:

        1. Seek every partition, and compare the stored positions with Kafka's offsets.
        2. Commit the gaps of lost records first: the positions of a later commit would hide them.
        3. Replace the state of the last assignment, whose numbers of partitions may differ.

        Returns: False while the broker does not answer. Raises: DataLossError.
        """
        try:
            begun, gaps = source.begin(self._log.progress)
        except DataLossError:
            raise
        except KafkaError as error:
            self._waiting.for_broker(error)
            return False
        self._waiting.over()

        # 2. Commit the gaps.
        if gaps:
            self._log.commit(
                empty_batch(self._log.schema), source.progress(begun), self._log.watermark, gaps
            )
            metrics.gaps.inc(len(gaps))
            metrics.lost_records.inc(sum(max(0, g.end - g.first) for g in gaps))

        # 3. Replace the state of the last assignment.
        self._held = {}
        self._letters.begin(source.partitions, source.progress(begun).topic_ids)
        self._traced.begin()
        self._decoder.begin()
        self._offsets.begin()
        self._assignment = Assignment(
            source,
            begun,
            merge_wait_seconds=self._settings.ingest.merge_wait_seconds,
            max_ahead_us=self._max_ahead_us,
            dim=self._log.schema.edge_feature_dim,
            now=self._clock.monotonic(),
        )
        logger.info(
            "ingest_started",
            partitions=len(begun),
            edges=self._log.num_edges,
            watermark=self._log.watermark,
        )
        return True

    @property
    def _current(self) -> Assignment:
        """The assignment that the last `begin` made."""
        assert self._assignment is not None
        return self._assignment

    def step(self, source: KafkaSource) -> bool:
        """Do one round of the loop:

        1. Publish the offsets of commits that were acknowledged.
        2. Poll, unless the clock is wrong, the first commit is held or schemas are awaited.
        3. Decode the records and push their events to the merge.
        4. Commit and report, each at its interval, and close the window of an idle stream.

        Returns: False if the source must begin again.
        """
        self._offsets.publish(source)
        if self._has_to_wait():
            return True
        has_all = self._current.merger.num_buffered and self._current.merger.all_at_end
        if has_all and (wait := self._until_commit()) > 0:
            # All records are read: sleep, so that one poll takes all events that arrive meanwhile.
            self._offsets.sleep(min(wait, POLL_SECONDS), source, self._clock)

        # 2. Poll, unless records wait for their schemas.
        try:
            polled = self._held or source.poll(self._poll_timeout(), MAX_COMMIT_EVENTS)
        except OffsetsLost:
            logger.warning("offset_out_of_range", meaning="positions are compared with Kafka")
            return False
        except KafkaError as error:
            self._pause("broker unavailable", RETRY_SECONDS, **self._waiting.for_broker(error))
            return True

        # 3. Decode and buffer; partitions with full buffers are not polled next time.
        try:
            self._prepare(source, polled)
            now = self._clock.monotonic()
            self._take(source, polled, now)
        except KafkaError as error:
            self._pause("broker unavailable", RETRY_SECONDS, **self._waiting.for_broker(error))
            return False  # A letter failed, perhaps of an earlier poll: read all again.
        except SchemaRegistryError as error:
            why = self._waiting.for_registry(error)
            self._pause("schema registry away", RETRY_SECONDS, why=why)
            # The next step retries held records. If some were already taken, read all again.
            return bool(self._held) and not source.has_changed
        self._waiting.note_registry()
        self._paused = self._current.merger.partitions_to_pause()
        source.pause(self._paused)

        # 4. Commit and report at their intervals.
        if not self._current.has_events and self._current.merger.num_buffered:
            self._current.has_events, self._current.last_commit = True, now + FIRST_COMMIT_SECONDS
        if now - self._current.last_commit >= self._settings.ingest.commit_interval_seconds:
            while self.commit(source):
                self._touch_heartbeat(source)
        if now - self._current.last_report >= REPORT_SECONDS:
            self._current.last_report = now
            self._report(source)
        self._close_idle_window(source, now)
        if source.has_changed:
            logger.info("topics_changed")
            return False
        return True

    def _prepare(self, source: KafkaSource, polled: Mapping[int, Sequence[Any]]) -> None:
        """Fetch the schemas of the polled records, and hold the records meanwhile, so that a
        failure loses none."""
        self._held = polled
        waiting = partial(self._pause, "asking for schemas", 0)
        prepare(self._decoder, source, polled, self._clock.now_us(), waiting)
        self._held = {}

    def _has_to_wait(self) -> bool:
        """Wait POLL_SECONDS if nothing may be read now. Returns: whether it waited."""
        known_us = max(self._log.newest_us or 0, self._closed_until)
        if self._clock_watch.is_behind(known_us):
            self._pause("waiting for the clock", POLL_SECONDS)
            return True
        if self._first_times.is_held:
            self._pause(HELD_STATE, POLL_SECONDS)
        return self._first_times.is_held

    def _pause(self, state: str, seconds: float, **detail: Any) -> None:
        """Wait before the next attempt; nothing can arrive meanwhile, so the stream is not idle.
        state, detail: for the heartbeat."""
        self._current.last_event = self._clock.monotonic()
        position = {"edges": self._log.num_edges, "watermark": self._log.watermark}
        self._beat.touch(state, **position, **detail)
        self._log.show_acknowledged()
        self._clock.sleep(seconds)

    def _poll_timeout(self) -> float:
        """Seconds a poll may wait: at most until a buffered event may be committed."""
        longest = self._offsets.longest_wait(POLL_SECONDS)
        if not self._current.merger.num_buffered:
            return longest
        due = self._current.merger.next_due(self._clock.monotonic())
        return min(longest, max(MIN_POLL_SECONDS, self._until_commit(), due))

    def _until_commit(self) -> float:
        """Seconds until the next commit may be made."""
        return (
            self._current.last_commit
            + self._settings.ingest.commit_interval_seconds
            - self._clock.monotonic()
        )

    def _take(self, source: KafkaSource, polled: Mapping[int, Sequence[Any]], now: float) -> None:
        """Decode the records of a poll, judge the events' times, and push the events to the
        merge."""
        at = self._current
        # Decode all first: a lead in one partition may confirm that of an event in another.
        records = [polled.get(number, ()) for number in range(len(source.partitions))]
        blocks = [
            self._decode(source, number, own, now) if own else self._nothing
            for number, own in enumerate(records)
        ]
        for number, judged in enumerate(at.suspects.judge(blocks, now)):
            for row, seconds in enumerate(judged.ahead_seconds):
                error = (
                    f"the event is {span(seconds)} further ahead of its record's timestamp "
                    "than all others"
                )
                refused = Refused(row, "time_ahead", error)
                self._letters.refuse(judged.refused, refused, self._decoder.keys.keys)

            # Events that are held as suspects do not count as read yet.
            position = source.position(number)
            held = at.suspects.partitions[number].first_waiting
            heard, paused = bool(records[number]), number in self._paused
            silent = at.silence.is_silent(number, heard, paused, now)
            at_end = (position >= source.end(number) or silent) and held is None
            at.merger.push(number, judged.taken, held or (position, 0), at_end, now)

    def _decode(
        self, source: KafkaSource, number: int, records: Sequence[Any], now: float
    ) -> Block:
        """Decode records, portion by portion with a heartbeat in between.

        Returns: the events that the log does not hold yet; invalid ones became dead letters.
        """
        self._letters.remember(number, records)
        self._traced.remember(number, records)
        blocks: list[Block] = []
        for portion in portions(records):
            if blocks:
                self._touch_heartbeat(source)
            blocks.append(self._decode_portion(number, portion))
        metrics.ingest_bytes.inc(int(value_sizes(records).sum()))
        self._current.stamps_ms[number] = records[-1].timestamp
        self._current.last_event = now
        return joined(blocks)

    def _decode_portion(self, number: int, records: Sequence[Any]) -> Block:
        resume = self._current.resume[number]
        topic = self._current.topics[number]
        events, rejected = self._decoder.decode(records, number, self._clock.now_us(), topic)
        # After a restart the first records may hold events that are in the log already.
        if records[0].offset <= max([resume.offset, *(run.last[0] for run in resume.ahead[-1:])]):
            events = events.take(lacks_events(events.rows, resume))
            first = resume.offset, resume.index
            rejected = [r for r in rejected if (r.offset, r.index) >= first or r.index < 0]
        for r in rejected:
            self._letters.add(number, r.offset, r.index, r.reason, r.error, r.raw, r.content_type)
        return events

    def commit(self, source: KafkaSource, final: bool = False) -> bool:
        """Commit the events that may be appended now:

        1. Take them out of the merge and build the columns; refused events become dead letters.
        2. Make the dead letters durable: after the commit, a restart would not read them again.
        3. Commit events, positions and watermark to the log.
        4. Publish the offsets to Kafka once readers may see the commit.

        Returns: whether the commit was full, so that more events may be waiting.
        """
        if self._first_times.hold():
            return False
        at = self._current
        now = self._clock.monotonic()
        limit = min(self._log.remaining_rows(), MAX_COMMIT_EVENTS)
        events = at.merger.release(now, limit)
        positions = at.positions
        moved = positions != at.stored
        if not len(events) and not (
            moved and (final or now - at.last_commit >= REPORT_SECONDS or at.stored[0].offset < 0)
        ):
            return False

        # 1. Build the columns. 2. Make the dead letters durable. 3. Commit.
        batch, watermark = self._build(events)
        self._letters.flush()
        with self._traced.commit(at.topics, positions, batch):
            self._log.commit(batch, source.progress(positions), watermark)
        at.stored = positions
        at.last_commit = now
        self._letters.forget(positions)
        self._offsets.add(positions)
        self._offsets.publish(source)

        # Update the metrics.
        metrics.events.labels("edge").inc(batch.num_edges)
        metrics.events.labels("label").inc(len(batch.label_node_L))
        metrics.events.labels("node").inc(len(batch.node_F))
        metrics.events.labels("delete").inc(len(batch.deletions_X))
        metrics.clamped.inc(len(batch.late_edge) + batch.num_late_labels)
        metrics.last_commit.set(self._clock.now_us() / 1e6)
        self._report_log()
        self._touch_heartbeat(source)
        return len(events) == limit

    def _report_log(self) -> None:
        metrics.log_edges.set(self._log.num_edges)
        metrics.watermark.set(self._log.watermark / 1e6)

    def _build(self, events: Block) -> tuple[EventBatch, int]:
        """Make the columns of a commit from merged events; those that are refused become dead
        letters.

        Returns: the batch, and the watermark after it.
        """
        keys = self._decoder.keys
        batch, watermark, refused = self._builder.build(
            events, keys.keys, keys.epoch, self._log.watermark, self._log.num_nodes
        )
        for r in refused:
            self._letters.refuse(events, r, keys.keys)
        if keys.is_full:
            # Only waiting events still need the numbers of their keys.
            suspects = self._current.suspects
            waiting = [*self._current.merger.buffers(), *(s.waiting for s in suspects.partitions)]
            renumber_keys(waiting, keys.shrink)
        return batch, watermark

    def _close_idle_window(self, source: KafkaSource, now: float) -> None:
        """Raise the watermark to the open window's end after a quiet time, so that the trainer
        trains on the window (docs/how-it-works.md).

        The wall clock must have passed that end too, since an event of the window may still come.
        """
        timeout = self._settings.ingest.idle_timeout_seconds
        newest = self._log.newest_us
        if (
            not timeout
            or newest is None
            or now - self._current.last_event < timeout
            or self._current.merger.num_buffered
            or not self._current.merger.all_at_end
        ):
            return

        # Ask the broker at most once per idle timeout, also if its answer is no.
        end = (newest // self._width_us + 1) * self._width_us
        if self._log.watermark >= end or self._clock.now_us() < end:
            return
        self._current.last_event = now
        if not source.confirm_all_read():
            return

        # Commit no events, only the new watermark.
        positions = self._current.positions
        self._log.commit(empty_batch(self._log.schema), source.progress(positions), end)
        self._current.stored = positions
        self._closed_until = end
        metrics.watermark.set(end / 1e6)
        metrics.idle_windows.inc()
        logger.info("idle_window_closed", watermark=end)
        self._touch_heartbeat(source)

    def _report(self, source: KafkaSource) -> None:
        """Set the lag metrics, do some housekeeping, and touch the heartbeat."""
        self._waiting.look(source, self._log.progress.positions)
        report_lag(source, self._current.merger, self._clock, self._current.stamps_ms)
        self._housekeep()
        self._touch_heartbeat(source)

    def _touch_heartbeat(self, source: KafkaSource) -> None:
        """Touch the heartbeat, with the state of the log and the records not yet read."""
        read = {"edges": self._log.num_edges, "watermark": self._log.watermark}
        state = {**read, **unread(source, self._current.merger, self._clock)}
        missing = self._waiting.missing
        more = {**missing, **self._letters.summary(), "clamped": int(metrics.clamped_total())}
        self._beat.touch(MISSING_STATE if missing else self._doing, **state, **more)
