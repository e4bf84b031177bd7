"""Lets the other roles of a member that may lead check whether it leads."""

from collections.abc import Callable
from pathlib import Path

from streamd.errors import FencedError
from streamd.eventlog.journal.changelog_position import ChangelogId, read_position
from streamd.replica.changelog.interface import ChangelogReader
from streamd.replica.changelog.kafka import KafkaReader
from streamd.settings.loading import KafkaSettings
from streamd.store.changelog import changelog_topic
from streamd.telemetry.heartbeat import leads_here

READ_SECONDS = 0.5


class LeadershipCheck:
    """Whether this member leads. It keeps no connection, since roles check once a round."""

    def __init__(self, data_dir: Path, connect: Callable[[], ChangelogReader]) -> None:
        """connect: makes a reader of the changelog."""
        self._data_dir = data_dir
        self._connect = connect

    def is_here(self) -> bool:
        """Whether ingest on this machine reports that it leads."""
        return leads_here(self._data_dir)

    def check(self) -> None:
        """Check that the changelog has no term above this member's. Raises: FencedError,
        KafkaError."""
        position = read_position(self._data_dir)
        if position is None or not self.is_here():
            raise FencedError("This member does not lead any more.", "none is needed.")

        # Ingest here has judged the records before the position.
        reader = self._connect()
        try:
            _, end = reader.bounds()
            reader.seek(position.offset)
            while reader.position < end:
                for entry in reader.read(READ_SECONDS):
                    if entry.term > position.term and entry.is_whole:
                        raise FencedError(
                            f"Another member leads: the changelog has term {entry.term}, and this "
                            f"one led in term {position.term}.",
                            "none is needed: it follows.",
                        )
        finally:
            reader.close()


def changelog_reader(kafka: KafkaSettings, log_name: str) -> ChangelogReader:
    """Make a reader of the changelog in Kafka. log_name: `log.name`, which names its topic."""
    return KafkaReader(kafka, ChangelogId(topic=changelog_topic(log_name)))
