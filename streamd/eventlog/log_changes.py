"""The changes that a refresh of the log brings, and the interface of the parts that apply them."""

from dataclasses import dataclass
from typing import Protocol

from streamd.eventlog.deletions import Deletions
from streamd.events import Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The commits since the followers last applied changes. False if there are none.

    Only deletes are listed, because they hide events that a follower already has. It reads new
    events, labels and node features from the log, up to the cut that it moves to.

    num_commits: commits since. deletions: all deletes of the log. nodes: int64 ids of the nodes
    deleted since. events: int64 ids of the events deleted since, one by one.
    """

    num_commits: int
    deletions: Deletions
    nodes: Int64
    events: Int64

    def __bool__(self) -> bool:
        return self.num_commits > 0

    @property
    def has_deletes(self) -> bool:
        return len(self.nodes) > 0 or len(self.events) > 0


class LogSubscriber(Protocol):
    """A part of a role with state that is derived from the log's events. Register it once, by
    `LogReader.follow`."""

    def apply(self, changes: Changes) -> None:
        """Hide the deleted events. It may be called again with the same changes."""
        ...
