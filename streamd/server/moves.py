"""The interface for changes of the champion, which the registry of this machine executes, or the
trainer on another machine by request."""

from typing import Protocol

from streamd.registry.journal import Move
from streamd.registry.outcome import Waiting


class Moves(Protocol):
    """Promotes and rolls back: `Registry` at once, a replica by a request to the trainer.

    Returns: the move, or `Waiting` if it was not made within the server's deadline. Raises:
    VersionError if the move is impossible, KafkaError if the request cannot be sent.
    """

    def promote(self, name: str, who: str, why: str) -> Move | Waiting:
        """Make a version the champion."""

    def rollback(self, who: str, why: str) -> Move | Waiting:
        """Make the last proven version the champion."""
