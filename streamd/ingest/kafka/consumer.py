"""The consumer of ingest. It resumes from positions in the log, never from offsets committed to a
consumer group."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from crc32c import crc32c
from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError
from kafka.errors import LogTruncationError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from streamd.clock import parse_time_us
from streamd.errors import DataLossError, KafkaError, SettingsError, SilentBrokerError
from streamd.events import Gap, Position, Progress
from streamd.ingest.kafka.client import asking_about_topics, make_consumer
from streamd.ingest.kafka.safe_records import (
    bound_polls,
    make_reading_safe,
    note_fetches,
    seek,
    stable_offsets,
    topic_ids,
)
from streamd.ingest.kafka.topic_watch import BrokerWatch, Topics, describe
from streamd.ingest.order.runs import runs_from
from streamd.settings.loading import IngestSettings, KafkaSettings

logger = structlog.get_logger()
ANSWER_MS = 5_000
"""Longest wait for one answer of the broker; by default kafka-python waits forever for a partition
without a leader."""
UNKNOWN_END = 2**62
"""End of a partition without a leader, which is unknown: the partition never counts as read to its
end."""
LOOK_BACK = 8
"""Number of offsets to look back for the record before another: transaction markers occupy some."""
AGAIN = "none is needed: ingest retries."
CONTINUE = (
    "set ingest.on_data_loss: continue, which records the gap in the journal; then start the "
    "daemon again."
)
LOST_RECORDS = f"raise the topic's retention or restore it; to skip the lost records, {CONTINUE}"
NEW_TOPIC = f"restore the old topic; to read the new one from its beginning, {CONTINUE}"
"""Operator actions after a loss of records."""


class OffsetsLost(Exception):
    """Kafka no longer has the offset to be read next, or a topic was created again. `begin` then
    determines the loss."""


class KafkaSource:
    """Reads the partitions of the configured topics, or a shard of them. Owner: the poll thread.

    Partitions are numbered in sorted order.
    """

    def __init__(self, kafka: KafkaSettings, ingest: IngestSettings) -> None:
        self._kafka = kafka
        self._ingest = ingest
        make_reading_safe(ingest.max_batch_bytes)
        self._fetched_at = 0.0
        self._consumer = self._open()
        self._stable = stable_offsets(self._consumer)
        self._topics = Topics("", {}, ())
        self._watch: BrokerWatch | None = None
        self._end: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}
        self.partitions: list[TopicPartition] = []

        self._epochs: dict[TopicPartition, int] = {}
        self._truncated: dict[TopicPartition, OffsetAndMetadata | None] = {}
        """Partitions with a leader that lacks records which were read -> the first offset that
        differs, None if the broker does not know it."""

    def _open(self) -> Any:
        """Make a client with polls of bounded bytes."""
        consumer = make_consumer(self._kafka)
        bound_polls(consumer, self._ingest.max_batch_bytes)
        note_fetches(consumer, self._note_fetch)
        return consumer

    def _note_fetch(self) -> None:
        """Note that the broker answered a fetch, with or without records. Called by the client's
        thread."""
        self._fetched_at = time.monotonic()

    def discover(self) -> tuple[str, ...]:
        """Ask the broker for cluster, topics and partitions.

        Returns: topics that do not exist; if there are any, nothing else changes. Raises:
        KafkaError; SettingsError if the shard has no partition.
        """
        with asking_about_topics(self._kafka) as admin:
            topics = describe(admin, self._kafka.topics)
        if topics.missing:
            return topics.missing

        # Choose the partitions of the shard.
        self._topics = topics
        self.partitions = [tp for tp in topics.partitions if in_shard(tp, self._ingest.shard)]
        if not self.partitions:
            raise SettingsError(
                f"Shard {self._ingest.shard} has none of the {len(topics.partitions)} partitions.",
                "use fewer shards, or more partitions.",
            )

        # Watch the broker for changes of this answer.
        if self._watch is not None:
            self._watch.close()
            # A client fails on a partition that its metadata do not have yet, so make a new one.
            self._consumer.close(autocommit=False)
            self._consumer = self._open()
            self._stable = stable_offsets(self._consumer)
        self._watch = BrokerWatch(self._kafka, topics)
        return ()

    @property
    def has_changed(self) -> bool:
        """Whether partitions were added or a topic was created again since `discover`."""
        return self._watch is not None and self._watch.changed.is_set()

    @property
    def missing_topics(self) -> tuple[str, ...]:
        """The topics that are gone since `discover`; the others are still read."""
        return self._watch.missing if self._watch is not None else ()

    def begin(self, stored: Progress) -> tuple[list[Position], list[Gap]]:
        """Seek every partition to its stored position or, without one, to the offset of
        `ingest.start`.

        Returns: the positions and, with `ingest.on_data_loss: continue`, the gaps that were
        skipped. Raises: DataLossError if Kafka no longer has the next records of the log;
        KafkaError while no broker answers.
        """
        topics = self._topics
        recreated = new_topics(topics, stored)
        known = {t: parts for t, parts in stored.positions.items() if t not in recreated}
        first, end = self._offsets_of_kafka(known)
        self._end = dict(end)
        self._stable.clear()

        # All positions of a topic that was created again are lost, also those in partitions that
        # the new one does not have yet.
        begun = []
        gaps = [
            self._lost(
                Gap(topic, partition, position.offset, -1),
                f"Topic {topic} was deleted and created again (id {topics.topic_ids[topic]}, the "
                f"log has {stored.topic_ids[topic]}).",
                NEW_TOPIC,
            )
            for topic in sorted(recreated)
            for partition, position in sorted(stored.positions.get(topic, {}).items())
        ]

        # Compare each other stored position with Kafka's offsets; missing records are a gap.
        for tp in self.partitions:
            position = known.get(tp.topic, {}).get(tp.partition)
            if position is not None:
                gap, position = self._compare_position(tp, position, first, end)
                gaps += [gap] if gap is not None else []
            elif tp.topic in stored.positions:
                # A partition that was added to a known topic is read from its beginning.
                position = Position(first[tp])
            else:
                position = Position(self._first_start(tp, first[tp], end[tp]))

            # By the epoch the broker can detect that its log is not the one that was read.
            seek(self._consumer, tp, position.offset, position.epoch)
            self._positions[tp] = position.offset
            self._epochs[tp] = position.epoch
            begun.append(position)
        self._truncated.clear()
        return begun, gaps

    def _offsets_of_kafka(self, known: Mapping[str, Mapping[int, Position]]) -> tuple[Any, Any]:
        """The first offset and the end of each partition that has a leader. Raises: KafkaError."""
        # Without a stored position, only a leader knows the first offset.
        topics = self._topics
        for tp in self.partitions:
            if tp in topics.leaderless and tp.partition not in known.get(tp.topic, {}):
                raise KafkaError(f"Partition {tp.topic}-{tp.partition} has no leader.", AGAIN)

        # Ask for the offsets that Kafka has.
        self._consumer.assign(self.partitions)
        led = [tp for tp in self.partitions if tp not in topics.leaderless]
        try:
            first = self._consumer.beginning_offsets(led, ANSWER_MS)
            return first, self._consumer.end_offsets(led, ANSWER_MS)
        except ClientError as error:
            raise SilentBrokerError(
                f"The broker does not return the partitions' offsets: {error}.", AGAIN
            ) from None

    def _compare_position(
        self,
        tp: TopicPartition,
        position: Position,
        first: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
    ) -> tuple[Gap | None, Position]:
        """Compare a stored position with Kafka's offsets. Returns: the gap, if records are missing,
        and the position to continue at. Raises: DataLossError."""
        name = f"{tp.topic}-{tp.partition}"
        if tp in self._topics.leaderless:
            logger.warning("partition_without_leader", topic=tp.topic, partition=tp.partition)
            self._end[tp] = UNKNOWN_END
            return None, position
        if tp in self._truncated:
            return self._find_divergence(tp, position, first[tp])
        if position.offset > end[tp]:
            gap = Gap(tp.topic, tp.partition, end[tp], position.offset)
            what = (
                f"{name} ends at offset {end[tp]}, but ingest has read up to {position.offset}: "
                "the topic was deleted and created again, or the brokers lost records."
            )
            return self._lost(gap, what, NEW_TOPIC), Position(end[tp])
        if position.offset < first[tp]:
            gap = Gap(tp.topic, tp.partition, position.offset, first[tp])
            what = (
                f"{name} begins at offset {first[tp]}; offsets {position.offset} to "
                f"{first[tp] - 1} were deleted before they were read."
            )
            ahead = runs_from(position.ahead, (first[tp], 0))
            return self._lost(gap, what), Position(first[tp], 0, ahead)
        return None, position

    def _find_divergence(
        self, tp: TopicPartition, position: Position, first: int
    ) -> tuple[Gap, Position]:
        """The gap of a partition with a new leader that lacks records which were read, and the
        position to continue at."""
        common = self._truncated[tp]
        what = f"The new leader of {tp.topic}-{tp.partition} lacks records that ingest has read"

        # None: the leader does not know the epoch, so the offset at which the logs diverge is
        # unknown; read the partition from its beginning.
        if common is None:
            return self._lost(
                Gap(tp.topic, tp.partition, position.offset, -1), f"{what}."
            ), Position(first)
        gap = Gap(tp.topic, tp.partition, common.offset, position.offset)
        return self._lost(
            gap, f"{what}: offsets {common.offset} to {position.offset - 1}."
        ), Position(common.offset)

    def _lost(self, gap: Gap, what: str, action: str = LOST_RECORDS) -> Gap:
        """Log a gap or raise DataLossError, depending on `ingest.on_data_loss`."""
        if self._ingest.on_data_loss == "fail":
            raise DataLossError(what, action)
        logger.error(
            "data_lost",
            topic=gap.topic,
            partition=gap.partition,
            first=gap.first,
            end=gap.end,
            what=what,
        )
        return gap

    def _first_start(self, tp: TopicPartition, first: int, end: int) -> int:
        """The offset at which `ingest.start` begins. Raises: KafkaError, SettingsError."""
        start = self._ingest.start
        if start in ("earliest", "latest"):
            return first if start == "earliest" else end
        time_ms = parse_time_us(start, "ingest.start (earliest, latest or a time)") // 1000
        try:
            answer = self._consumer.offsets_for_times({tp: time_ms}, ANSWER_MS)[tp]
        except ClientError as error:
            raise SilentBrokerError(
                f"The broker does not return the offset of ingest.start {start}: {error}.", AGAIN
            ) from None
        # None: no record of the partition is that late.
        return end if answer is None else int(answer.offset)

    def poll(self, timeout_seconds: float, max_records: int) -> dict[int, Sequence[Any]]:
        """Poll for records, by number of partition.

        Raises: OffsetsLost if Kafka lost the next records or a topic was created again; KafkaError
        while no broker answers.
        """
        try:
            polled = self._consumer.poll(
                timeout_ms=int(timeout_seconds * 1000), max_records=max_records
            )
            self._positions = {
                tp: int(self._consumer.position(tp, ANSWER_MS)) for tp in self.partitions
            }
        except OffsetOutOfRangeError:
            raise OffsetsLost from None
        except LogTruncationError as error:
            self._truncated.update(error.divergent_offsets)
            raise OffsetsLost from None
        except Exception as error:  # noqa: BLE001 - after any error the client may be broken
            self._replace_client()
            raise SilentBrokerError(f"The broker does not answer: {error!r}.", AGAIN) from error
        if _has_new_topic(self._consumer, self._topics):
            raise OffsetsLost
        # By the epoch of the last record the broker can detect that its log differs.
        self._epochs.update(
            {tp: records[-1].leader_epoch for tp, records in polled.items() if records}
        )
        number = {tp: i for i, tp in enumerate(self.partitions)}
        return {number[tp]: records for tp, records in polled.items()}

    def _replace_client(self) -> None:
        """Continue with a new client: one that raised may raise again, or hang."""
        # A new client fills a new table; the known ends are still valid.
        known_ends = self._stable
        self._consumer.close(autocommit=False)
        self._consumer = self._open()
        self._stable = stable_offsets(self._consumer)
        self._stable.update(known_ends)
        self._consumer.assign(self.partitions)
        for tp in self.partitions:
            seek(self._consumer, tp, self._positions[tp], self._epochs.get(tp, -1))

    def records_before(self, source: int, offset: int) -> list[Any]:
        """Read the last records before an offset again, at most LOOK_BACK; none if Kafka no longer
        has them. Raises: KafkaError while the broker does not send them."""
        tp = self.partitions[source]
        # Use another client, so that position and leader epochs of this one stay unchanged.
        consumer = make_consumer(self._kafka)
        found: list[Any] = []
        try:
            consumer.assign([tp])
            first = consumer.beginning_offsets([tp], ANSWER_MS)[tp]
            consumer.seek(tp, max(first, offset - LOOK_BACK))
            until = time.monotonic() + ANSWER_MS / 1000
            while consumer.position(tp, ANSWER_MS) < offset:
                if time.monotonic() > until:
                    raise SilentBrokerError(
                        f"The broker does not send records of {tp.topic}-{tp.partition}.", AGAIN
                    )
                for records in consumer.poll(timeout_ms=500).values():
                    found += [record for record in records if record.offset < offset]
        except OffsetOutOfRangeError:
            return []
        except ClientError as error:
            raise SilentBrokerError(f"The broker does not send records: {error}.", AGAIN) from None
        finally:
            consumer.close(autocommit=False)
        return found

    def position(self, source: int) -> int:
        """The next offset to be read, as of the last poll.

        It moves past the offsets that transactions and compaction leave empty.
        """
        return self._positions[self.partitions[source]]

    def end(self, source: int) -> int:
        """The offset up to which the partition can be read, as last seen.

        An open transaction ends it at the transaction's first offset.
        """
        tp = self.partitions[source]
        return self._stable.get(tp, self._end[tp])

    @property
    def answered_at(self) -> float:
        """When the broker last answered the watch or a fetch, in monotonic seconds."""
        watched = self._watch.answered_at if self._watch is not None else 0.0
        return max(watched, self._fetched_at)

    @property
    def has_asked(self) -> bool:
        """Whether the watch has finished a round, well or not. The first round takes long on a busy
        machine; silence before its end proves nothing."""
        return self._watch is not None and self._watch.has_asked

    def confirm_all_read(self) -> bool:
        """Ask the broker whether every partition is read to its end; False also if it does not
        answer, or lacks a topic."""
        if self.missing_topics:
            return False
        try:
            end = self._consumer.end_offsets(self.partitions, ANSWER_MS)
        except ClientError as error:
            logger.warning("broker_unavailable", error=str(error))
            return False
        return all(self._positions[tp] >= int(end[tp]) for tp in self.partitions)

    def pause(self, sources: Sequence[int]) -> None:
        """Stop polling these partitions, and poll all others."""
        wanted = {self.partitions[s] for s in sources}
        paused = self._consumer.paused()
        if wanted - paused:
            self._consumer.pause(*(wanted - paused))
        if paused - wanted:
            self._consumer.resume(*(paused - wanted))

    def publish(self, positions: Sequence[Position]) -> None:
        """Publish the positions to Kafka, for lag tools only."""
        if self._watch is not None:
            self._watch.publish(
                {tp: p.offset for tp, p in zip(self.partitions, positions, strict=True)}
            )

    def progress(self, positions: Sequence[Position]) -> Progress:
        """The progress that a commit stores with these positions."""
        table: dict[str, dict[int, Position]] = {}
        for tp, position in zip(self.partitions, positions, strict=True):
            # The epoch is stored too: after a restart the broker can still detect a truncated log.
            table.setdefault(tp.topic, {})[tp.partition] = replace(
                position, epoch=self._epochs.get(tp, -1)
            )
        return Progress(self._topics.cluster_id, dict(self._topics.topic_ids), table)

    def close(self) -> None:
        """Close the watch, which publishes positions a last time, and the client."""
        if self._watch is not None:
            self._watch.close()
        self._consumer.close(autocommit=False)


def new_topics(topics: Topics, stored: Progress) -> set[str]:
    """The topics that were deleted and created again since the log read them. Raises: DataLossError
    for another cluster."""
    if stored.cluster_id and topics.cluster_id and stored.cluster_id != topics.cluster_id:
        raise DataLossError(
            f"This log was read from Kafka cluster {stored.cluster_id}, not {topics.cluster_id}.",
            "point kafka.bootstrap_servers at that cluster, or start a new data_dir.",
        )
    return {
        t
        for t, old in stored.topic_ids.items()
        if old and topics.topic_ids.get(t, old) not in (old, "")
    }


def in_shard(tp: TopicPartition, shard: str | None) -> bool:
    """Whether a partition belongs to a shard such as "2/4", the second of four.

    Adding partitions moves none to another shard.
    """
    if shard is None:
        return True
    # The topic's hash spreads topics of one partition over the shards.
    index, count = (int(x) for x in shard.split("/"))
    return int(crc32c(tp.topic.encode()) + tp.partition) % count == index - 1


def _has_new_topic(consumer: Any, topics: Topics) -> bool:
    """Whether the client's metadata has another id for a topic: it was created again, and the
    polled records may be of the new topic, at offsets of the old one."""
    known = topics.topic_ids
    found = topic_ids(consumer, list(known))
    return any(known[topic] not in ("", now) for topic, now in found.items())
