"""The records of topics around the end of a history."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError, SettingsError
from streamd.ingest.kafka.bounded_read import read_offsets
from streamd.ingest.kafka.client import asking_about_topics, make_consumer
from streamd.ingest.kafka.topic_watch import describe, missing_topic
from streamd.settings.loading import KafkaSettings

SAMPLE_RECORDS = 1000
"""Records of each partition that are read before and after the seam, to check that the history ends
within it."""
Offsets = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> the next offset to read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Zone:
    """The seam of a partition. Each event of the records [first, end) may be in the history or not.
    Those before should be, and those after should not.

    oldest: the first offset that Kafka has. wanted: the offset that was given or found for the
    start, perhaps before the oldest. sampled: a range of offsets around [first, end).
    """

    partition: TopicPartition
    oldest: int
    wanted: int
    first: int
    end: int
    sampled: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"


def read_offsets_file(path: Path) -> Offsets:
    """The offsets in a JSON file such as {"orders": {"0": 123, "1": 130}}. Raises:
    SettingsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[int, int]], strict=False)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}.", "check the path."
        ) from None
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"{path} has no offsets: {error}.",
            'give the next offset of each partition, as {"topic": {"0": 123, "1": 130}}.',
        ) from None


class SeamTopics:
    """The partitions of topics that continue a history. Owner: the import."""

    def __init__(self, kafka: KafkaSettings, topics: Sequence[str]) -> None:
        """Raises: KafkaError if no broker answers, or a topic does not exist."""
        with asking_about_topics(kafka) as admin:
            found = describe(admin, tuple(topics))
        if found.missing:
            raise KafkaError(missing_topic(found.missing[0], kafka.bootstrap_servers))
        self.cluster_id = found.cluster_id
        self.topic_ids = found.topic_ids
        self.partitions = found.partitions
        self._kafka = kafka
        self._consumer = make_consumer(kafka)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def zones_of(self, offsets: Offsets) -> list[Zone]:
        """The empty seams at given offsets. Raises: SettingsError for a partition without one, or
        an offset after the partition's end; KafkaError."""
        oldest, newest = self._bounds()
        starts = {}
        for tp in self.partitions:
            start = offsets.get(tp.topic, {}).get(tp.partition)
            name = f"{tp.topic}-{tp.partition}"
            if start is None:
                raise SettingsError(f"The offsets have none of {name}.", "add its next offset.")
            if start > newest[tp]:
                raise SettingsError(
                    f"The offset of {name} is {start}, but it ends at {newest[tp]}.",
                    "check topic and broker.",
                )
            starts[tp] = start
        return self._zones(oldest, newest, starts, starts)

    def zones_at(self, time_us: int, seconds: float) -> list[Zone]:
        """The seams from some seconds before a time until as many after it, by the timestamps of
        records. Raises: KafkaError."""
        oldest, newest = self._bounds()
        ends = []
        for at in (time_us / 1e6 - seconds, time_us / 1e6 + seconds):
            found = self._ask(
                lambda at=at: self._consumer.offsets_for_times(
                    dict.fromkeys(self.partitions, max(0, int(at * 1000)))
                )
            )
            # None: no record of the partition is that late.
            ends.append(
                {tp: newest[tp] if one is None else int(one.offset) for tp, one in found.items()}
            )
        return self._zones(oldest, newest, *ends)

    def _zones(
        self,
        oldest: Mapping[TopicPartition, int],
        newest: Mapping[TopicPartition, int],
        first: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
    ) -> list[Zone]:
        return [
            Zone(
                partition=tp,
                oldest=oldest[tp],
                wanted=first[tp],
                first=max(oldest[tp], first[tp]),
                end=max(oldest[tp], end[tp]),
                sampled=(
                    max(oldest[tp], first[tp] - SAMPLE_RECORDS),
                    min(newest[tp], end[tp] + SAMPLE_RECORDS),
                ),
            )
            for tp in self.partitions
        ]

    def read(self, zone: Zone) -> Iterator[Sequence[Any]]:
        """Yield the records of a seam and around it, in order. Raises: KafkaError."""
        first, end = zone.sampled
        try:
            for _, records in read_offsets(
                self._consumer, {zone.partition: first}, {zone.partition: end}
            ):
                yield records
        except ClientError as error:
            raise self._unread(error) from None

    def _bounds(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The oldest offset of each partition, and its end."""
        parts = list(self.partitions)
        return (
            self._ask(lambda: self._consumer.beginning_offsets(parts)),
            self._ask(lambda: self._consumer.end_offsets(parts)),
        )

    def _ask(self, ask: Any) -> Any:
        try:
            return ask()
        except ClientError as error:
            raise self._unread(error) from None

    def _unread(self, error: ClientError) -> KafkaError:
        return KafkaError(
            f"The topics cannot be read: {error}.",
            f"check {self._kafka.bootstrap_servers}, kafka.client and this user's rights; then "
            "repeat the command.",
        )
