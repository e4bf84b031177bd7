"""Changes of the champion: by the registry of this machine, or by a request to the trainer's
machine."""

from typing import Protocol

from streamd.registry.journal import Move
from streamd.registry.outcome import Waiting


class Moves(Protocol):
    """Promotes and rolls back. `Registry` does it at once; a replica requests it from the trainer.

    Both methods raise VersionError if the move is impossible and KafkaError if the request cannot
    be sent. They return `Waiting` if the trainer has not answered within the server's deadline.
    """

    def promote(self, name: str, who: str, why: str) -> Move | Waiting:
        """Make a version the champion."""

    def rollback(self, who: str, why: str) -> Move | Waiting:
        """Make the last proven version the champion."""
