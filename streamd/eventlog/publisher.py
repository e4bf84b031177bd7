"""What the log's writer knows of a changelog: it hands over each durable commit, and shows a commit
to readers only when the changelog has it."""

from typing import Any, Protocol

from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition
from streamd.eventlog.journal.journal import LogState


class Publisher(Protocol):
    """Publishes the commits of a log to other machines. Owner: the log's writer.

    Its methods raise KafkaError where a commit cannot be published any more, and ChangelogError
    where another machine leads. The process then ends, and what it did not show is decided at its
    next start. changelog: where they go to.
    """

    changelog: ChangelogId

    @property
    def term(self) -> int:
        """The term in which it publishes."""
        ...

    def publish(self, before: LogState, fields: dict[str, Any], line: bytes) -> None:
        """Hand over a commit that is durable: its line of the journal, decoded and as bytes, and
        the state before it. What the line says of files is read from them."""
        ...

    def heartbeat(self) -> None:
        """Say that the writer lives, where nothing was sent for a while. Called by the writer's
        loop, so that one that hangs says nothing."""
        ...

    def acknowledged(self) -> ChangelogPosition:
        """The newest commit up to which all are acknowledged, and how far the changelog is known
        behind it; it does not wait."""
        ...

    def wait(self) -> None:
        """Wait a little for a further acknowledgement."""
        ...

    def close(self) -> None: ...
