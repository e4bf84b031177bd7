"""The Kafka side of ingest: an assigned consumer that never commits to resume, only to publish its lag."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError as ClientError
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from streamd.errors import DataLossError, KafkaError, SettingsError
from streamd.events import Position, Progress
from streamd.settings import KafkaSettings

log = structlog.get_logger()
RECONNECT_MS = 2_000
"""Longest pause between attempts to reach a broker; the client's own 30 s would outlast most restarts."""


def client_settings(kafka: KafkaSettings, known: Mapping[str, Any]) -> dict[str, Any]:
    """kafka-python settings every client of ours gets; lists from YAML or JSON become the tuples it expects."""
    extra = {k: tuple(v) if isinstance(v, list) else v for k, v in kafka.client.items() if k in known}
    if "reconnect_backoff_max_ms" in known:
        extra.setdefault("reconnect_backoff_max_ms", RECONNECT_MS)
    return {"bootstrap_servers": [s.strip() for s in kafka.bootstrap_servers.split(",")], **extra}


def check_client_settings(kafka: KafkaSettings) -> None:
    """Refuse unknown `kafka.client` keys by name. Raises: SettingsError."""
    unknown = set(kafka.client) - set(KafkaConsumer.DEFAULT_CONFIG) - set(KafkaProducer.DEFAULT_CONFIG)
    if unknown:
        raise SettingsError(f"kafka.client has {sorted(unknown)[0]!r}, which kafka-python does not know.")


def make_producer(kafka: KafkaSettings, **settings: Any) -> KafkaProducer:
    """A producer under the same client settings; the caller closes it."""
    try:
        return KafkaProducer(**client_settings(kafka, KafkaProducer.DEFAULT_CONFIG), **settings)
    except ClientError as error:
        raise KafkaError(f"No broker answers at {kafka.bootstrap_servers}: {error}.",
                         "check kafka.bootstrap_servers and kafka.client.") from None


def make_admin(kafka: KafkaSettings) -> KafkaAdminClient:
    """An admin client under the same client settings; the caller closes it."""
    try:
        return KafkaAdminClient(**client_settings(kafka, KafkaAdminClient.DEFAULT_CONFIG))
    except ClientError as error:
        raise KafkaError(f"No broker answers at {kafka.bootstrap_servers}: {error}.",
                         "check kafka.bootstrap_servers and kafka.client.") from None


class KafkaSource:
    """All partitions of the configured topics, numbered in sorted order as sources. Owner: the poll thread."""

    def __init__(self, kafka: KafkaSettings) -> None:
        check_client_settings(kafka)
        self._kafka = kafka
        config = client_settings(kafka, KafkaConsumer.DEFAULT_CONFIG)
        config.setdefault("fetch_max_bytes", 16_777_216)
        config.setdefault("max_partition_fetch_bytes", 4_194_304)
        try:
            self._consumer = KafkaConsumer(
                **config, group_id=kafka.group_id, enable_auto_commit=False, auto_offset_reset="none",
                isolation_level="read_committed", allow_auto_create_topics=False, metadata_max_age_ms=30_000)
        except ClientError as error:
            raise KafkaError(f"No broker answers at {kafka.bootstrap_servers}: {error}.",
                             "check kafka.bootstrap_servers and kafka.client.") from None
        self.partitions: list[TopicPartition] = []
        self.cluster_id = ""
        self.topic_ids: dict[str, str] = {}

    def discover(self) -> bool:
        """Learn cluster, topics and partitions; False while a topic does not exist yet."""
        admin = make_admin(self._kafka)
        try:
            self.cluster_id = admin.describe_cluster().get("cluster_id") or ""
            described = admin.describe_topics(list(self._kafka.topics))
        except ClientError as error:
            raise KafkaError(f"The broker does not describe its topics: {error}.", "check kafka.client.") from None
        finally:
            admin.close()
        found = {t["name"]: t for t in described if not t["error_code"] and t["partitions"]}
        if len(found) < len(set(self._kafka.topics)):
            return False
        self.topic_ids = {n: str(t["topic_id"]) if t.get("topic_id") else "" for n, t in found.items()}
        self.partitions = sorted(TopicPartition(n, p["partition_index"]) for n, t in found.items()
                                 for p in t["partitions"])
        return True

    def begin(self, stored: Progress, start: str) -> list[Position]:
        """Seek every partition to its stored position, or by `start` where there is none, after checking both.

        Raises: DataLossError where Kafka no longer has what the log expects next; nothing is skipped in silence.
        KafkaError while no broker answers.
        """
        if stored.cluster_id and self.cluster_id and stored.cluster_id != self.cluster_id:
            raise DataLossError(f"This log was read from Kafka cluster {stored.cluster_id}, not {self.cluster_id}.",
                                "point kafka.bootstrap_servers at that cluster, or start a new data_dir.")
        for topic, old in stored.topic_ids.items():
            new = self.topic_ids.get(topic, old)
            if old and new and old != new:
                raise DataLossError(f"Topic {topic} was deleted and made anew (id {new}, the log has {old}).",
                                    "start a new data_dir, or restore the topic from its backup.")
        self._consumer.assign(self.partitions)
        try:
            first = self._consumer.beginning_offsets(self.partitions)
            end = self._consumer.end_offsets(self.partitions)
        except ClientError as error:
            raise KafkaError(f"The broker does not tell its offsets: {error}.", "ingest goes on trying.") from None
        self._end = dict(end)
        begun = []
        for tp in self.partitions:
            position = stored.positions.get(tp.topic, {}).get(tp.partition)
            if position is None:
                known_topic = tp.topic in stored.positions
                position = Position(first[tp] if known_topic else self._first_start(tp, start, first[tp], end[tp]))
            elif position.offset > end[tp]:
                raise DataLossError(
                    f"{tp.topic}-{tp.partition} ends at offset {end[tp]}, but the log has read up to {position.offset}.",
                    "the topic lost records: restore it, or start a new data_dir.")
            elif position.offset < first[tp]:
                raise DataLossError(
                    f"{tp.topic}-{tp.partition} begins at offset {first[tp]}; offsets {position.offset} to "
                    f"{first[tp] - 1} were deleted before they were read.",
                    "raise the topic's retention and start a new data_dir with ingest.start: earliest.")
            self._consumer.seek(tp, position.offset)
            begun.append(position)
        return begun

    def _first_start(self, tp: TopicPartition, start: str, first: int, end: int) -> int:
        if start in ("earliest", "latest"):
            return first if start == "earliest" else end
        found = self._consumer.offsets_for_times({tp: parse_time_ms(start)})[tp]
        return end if found is None else int(found.offset)

    def poll(self, timeout_seconds: float, max_records: int) -> dict[int, Sequence[Any]]:
        """Records by source. Raises: DataLossError where retention ran past us, KafkaError while no broker answers."""
        try:
            polled = self._consumer.poll(timeout_ms=int(timeout_seconds * 1000), max_records=max_records)
        except OffsetOutOfRangeError as error:
            raise DataLossError(f"Kafka deleted records before they were read: {error}.",
                                "raise the topic's retention and start a new data_dir.") from None
        except ClientError as error:
            raise KafkaError(f"The broker does not answer: {error}.", "ingest goes on trying.") from None
        number = {tp: i for i, tp in enumerate(self.partitions)}
        return {number[tp]: records for tp, records in polled.items()}

    def position(self, source: int) -> int:
        """Next offset to be read; passes over holes left by transactions and compaction."""
        return int(self._consumer.position(self.partitions[source]))

    def end(self, source: int) -> int:
        """End of the partition as last seen."""
        tp = self.partitions[source]
        seen = self._consumer.highwater(tp)
        return int(self._end[tp] if seen is None else seen)

    def confirm_all_read(self) -> bool:
        """Ask the broker itself whether every partition is read to its end; False where it does not answer."""
        try:
            end = self._consumer.end_offsets(self.partitions, timeout_ms=5000)
        except ClientError as error:
            log.warning("broker_unavailable", error=str(error))
            return False
        return all(self.position(i) >= end[tp] for i, tp in enumerate(self.partitions))

    def pause(self, sources: Sequence[int]) -> None:
        """Poll all partitions but these."""
        wanted = {self.partitions[s] for s in sources}
        paused = self._consumer.paused()
        if wanted - paused:
            self._consumer.pause(*(wanted - paused))
        if paused - wanted:
            self._consumer.resume(*(paused - wanted))

    def publish(self, positions: Sequence[Position]) -> None:
        """Tell Kafka how far we are, for lag tools only; a failure is logged and costs nothing."""
        offsets = {tp: OffsetAndMetadata(p.offset, "", -1) for tp, p in zip(self.partitions, positions, strict=True)}

        def done(_: Any, response: Any) -> None:
            if isinstance(response, Exception):
                log.warning("lag_not_published", error=str(response))

        self._consumer.commit_async(offsets, callback=done)

    def progress(self, positions: Sequence[Position]) -> Progress:
        """What the commit line stores."""
        table: dict[str, dict[int, Position]] = {}
        for tp, position in zip(self.partitions, positions, strict=True):
            table.setdefault(tp.topic, {})[tp.partition] = position
        return Progress(self.cluster_id, dict(self.topic_ids), table)

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def parse_time_ms(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time, UTC where it names no zone. Raises: SettingsError."""
    try:
        time = datetime.datetime.fromisoformat(re.sub("Z$", "+00:00", text))
    except ValueError:
        raise SettingsError(f"ingest.start is {text!r}; use earliest, latest or a time like 2026-01-31T00:00:00Z.") from None
    return int(time.replace(tzinfo=time.tzinfo or datetime.UTC).timestamp() * 1000)
