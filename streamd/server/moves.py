"""Who moves the champion: the registry here, or the trainer of another machine, which is asked."""

from typing import Protocol

from streamd.registry.journal import Move
from streamd.registry.outcome import Waiting


class Moves(Protocol):
    """Promotes and rolls back. `Registry` does at once what a replica asks its trainer for.

    Both raise VersionError where it cannot be done, KafkaError where nobody can be asked; they
    return `Waiting` where the trainer has not answered within the server's deadline.
    """

    def promote(self, name: str, who: str, why: str) -> Move | Waiting:
        """Make a version champion."""

    def rollback(self, who: str, why: str) -> Move | Waiting:
        """Make the last proven version champion."""
