"""Scores that were written before: all records of the score topic, or a file of them."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError, SettingsError
from streamd.ingest.kafka.bounded_read import read_offsets
from streamd.ingest.kafka.client import make_consumer
from streamd.scoring.record import ScoreRecord, decode
from streamd.settings.loading import KafkaSettings, Settings

FILE_RECORDS = 4096
"""Records of a file in a batch: about a megabyte of text."""


class ScoreSource(Protocol):
    """Scores in no particular order. A second read gives those of the first again, without records
    that expired in between."""

    def batches(self) -> Iterator[Sequence[ScoreRecord]]:
        """Yield all records. Raises: StreamdError."""


class TopicScores:
    """The scores in a topic, up to its end at the first read. Owner: a snapshot of a log."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._end: dict[Any, int] | None = None

    def batches(self) -> Iterator[Sequence[ScoreRecord]]:
        """Yield all records, partition by partition or mixed. Other records are skipped, as by the
        role. Raises: KafkaError."""
        # The consumer lives as long as a reader takes batches.
        with closing(make_consumer(self._kafka)) as consumer:
            try:
                yield from self._read(consumer)
            except ClientError as error:
                raise KafkaError(
                    f"The scores in topic {self._topic!r} cannot be read: {error}.",
                    f"check {self._kafka.bootstrap_servers}, kafka.client and this user's rights.",
                ) from None

    def _read(self, consumer: Any) -> Iterator[Sequence[ScoreRecord]]:
        # The first read fixes the end, so that all reads of a snapshot agree.
        if self._end is None:
            numbers = consumer.partitions_for_topic(self._topic)
            if not numbers:
                raise KafkaError(
                    f"The score topic {self._topic!r} does not exist.",
                    "correct server.score_topic, or let the role `score` write the first record.",
                )
            self._end = consumer.end_offsets([TopicPartition(self._topic, n) for n in numbers])

        # Retention may have dropped the oldest records since.
        begin = consumer.beginning_offsets(list(self._end))
        for _, records in read_offsets(consumer, begin, self._end):
            decoded = (decode(record.value) for record in records)
            yield [one for one in decoded if one is not None]


class FileScores:
    """The scores in a file with the JSON of one record a line, as console consumers of Kafka print
    a topic."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(self) -> Iterator[Sequence[ScoreRecord]]:
        """Yield all records in the order of the file. Raises: SettingsError if it cannot be read,
        or for the first line that is no score."""
        batch = []
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    # Consoles print a tombstone as an empty line.
                    if not line.strip():
                        continue
                    record = decode(line)
                    if record is None:
                        raise SettingsError(
                            f"{self._path} line {number} is not a record of a score topic.",
                            "name a file with the JSON of one record a line.",
                        )
                    batch.append(record)
                    if len(batch) >= FILE_RECORDS:
                        yield batch
                        batch = []
        # A folder, or no right to read.
        except OSError as error:
            raise SettingsError(
                f"{self._path} cannot be read: {error.strerror}.", "check the path."
            ) from None
        yield batch


class _NoScores:
    """The source if neither a topic nor a file is named."""

    def batches(self) -> Iterator[Sequence[ScoreRecord]]:
        """Raises: SettingsError."""
        raise SettingsError(
            "There are no scores: server.score_topic is not set.",
            "set it, or name a file with the records of a score topic.",
        )


NO_SCORES: ScoreSource = _NoScores()


def score_source(settings: Settings, file: Path | None) -> ScoreSource:
    """A file of scores, or the topic of the settings."""
    if file is not None:
        return FileScores(file)
    topic = settings.server.score_topic
    return TopicScores(settings.kafka, topic) if topic else NO_SCORES
