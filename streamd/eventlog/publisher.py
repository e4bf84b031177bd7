"""The interface of a changelog. The log's writer sends it each durable commit, and publishes a
commit to readers only once the changelog has it."""

from typing import Any, Protocol

from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition
from streamd.eventlog.journal.journal import LogState


class Publisher(Protocol):
    """Sends the commits of a log to other machines. Owner: the log's writer.

    Its methods raise KafkaError if a commit cannot be sent any more, and ChangelogError if another
    machine leads. The process then ends, and its next start decides about the commits that it has
    not published. changelog: the topic.
    """

    changelog: ChangelogId

    @property
    def term(self) -> int:
        """The term in which it sends."""
        ...

    def publish(self, before: LogState, fields: dict[str, Any], line: bytes) -> None:
        """Send a durable commit. before: the state before it. fields, line: its line of the
        journal, decoded and as bytes. The rows are read from the files that the line names."""
        ...

    def heartbeat(self) -> None:
        """Send a heartbeat if nothing was sent for a while. The writer's loop calls this, so a loop
        that hangs sends none."""
        ...

    def acknowledged(self) -> ChangelogPosition:
        """The newest commit up to which all are acknowledged, and the offset up to which the
        changelog is known after it; does not wait."""
        ...

    def wait(self) -> None:
        """Wait a little for a further acknowledgement."""
        ...

    def close(self) -> None: ...
