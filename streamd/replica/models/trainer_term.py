"""A trainer's term: its claim in the models topic, and its checkpoints in the store."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import structlog

from streamd.errors import FencedError
from streamd.replica.models import records
from streamd.replica.models.checkpoint_marker import NOTHING, Stored, read_marker, write_marker
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import ModelsTopic
from streamd.store.checkpoints import StoredCheckpoint, newest_term
from streamd.store.file_index import FileIndex
from streamd.store.objects import Store
from streamd.store.versions import StoredVersion
from streamd.training.handover import Handovers

logger = structlog.get_logger()
INDEX = "train/stored.index"
"""File in the data directory: the index of the trainer's files, which spares the next upload from
reading unchanged ones."""


class TrainerTerm:
    """A trainer's claim, and its checkpoints since. Owner: the trainer's process, which makes one
    at each start and may make several publishers for it.

    id: of its claim. handovers: states to store. newest: the checkpoint stored last, None before
    the first. uploaded: versions with all files in the store, by name. has_asked: whether ingest
    here was asked for the compactions that an earlier trainer released.
    """

    def __init__(
        self,
        data_dir: Path,
        member: str,
        now: Callable[[], float] = time.time,
        *,
        store: Store,
    ) -> None:
        """Args: data_dir: of the trainer. member: name of this machine. now: wall time, seconds.
        store: of checkpoints."""
        self._store = store
        self._data_dir = data_dir
        self._member = member
        self._now = now
        self.id = uuid.uuid4().hex
        self.handovers = Handovers(data_dir)
        self.index = FileIndex(data_dir / INDEX)
        self.newest: StoredCheckpoint | None = None
        self.uploaded: dict[str, StoredVersion] = {}
        self.has_asked = False
        self._entries = read_marker(data_dir)

    def claim(self, topic: ModelsTopic, state: ModelsState) -> None:
        """Win a term of the models topic, and read the topic to its end. If it has no valid record
        of a trainer, claim a term above all known ones; then everything is sent again. Raises:
        KafkaError, StoreError; then call again: the topic shows whether the claim arrived."""
        state.take(topic.read(0.0))
        while state.trainer != self.id:
            anew = not state.has_begun
            term = max(state.highest_term, newest_term(self._store)) if anew else state.term
            claimed = records.Claimed(
                term=term + 1, member=self._member, id=self.id, at=self._now(), anew=anew
            )
            topic.append(records.encode(claimed))
            state.take(topic.read(0.0))
        logger.info("trainer_leads", term=state.term)

    def check(self, topic: ModelsTopic, state: ModelsState) -> None:
        """Check that no later trainer has claimed. If the topic has no claim at all, it was created
        again or lost its first records, and this trainer claims again. Raises: FencedError,
        KafkaError, StoreError."""
        state.check_beginning()
        if not state.trainer:
            logger.warning("models_topic_has_no_claim", meaning="all is stored and sent again")
            self.claim(topic, state)
            self.handovers.take_again()
        if state.trainer != self.id:
            raise FencedError(
                f"Another trainer has claimed term {state.term} of the models topic.",
                "none is needed if other members are standbys; else stop one of the two leaders.",
            )

    def note(self, entry: Stored, state: ModelsState) -> None:
        """Write durably that a checkpoint is in the store, before the topic gets its record.
        Raises: OSError."""
        # Later entries than the topic's newest checkpoint stay: their records may arrive although
        # they were not acknowledged.
        names = [one.name for one in self._entries]
        newest = state.checkpoints[-1].name if state.checkpoints else ""
        since = names.index(newest) if newest in names else 0
        self._entries = [*self._entries[since:], entry]
        write_marker(self._data_dir, self._entries)

    def has_stored(self, name: str) -> bool:
        """Whether the state in this directory continues from a checkpoint."""
        return any(entry.name == name for entry in self._entries)

    def marked_entry(self, state: ModelsState) -> Stored:
        """The marker's entry of the topic's newest checkpoint: the topic may get as much of the
        directory as this checkpoint has."""
        name = state.checkpoints[-1].name if state.checkpoints else ""
        return next((one for one in reversed(self._entries) if one.name == name), NOTHING)

    def renew(self) -> None:
        """Read the marker again, after a checkpoint was taken."""
        self._entries = read_marker(self._data_dir)
