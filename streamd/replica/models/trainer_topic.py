"""The models topic for its trainer: read to its end, with numbered records."""

from collections.abc import Callable, Iterable

import structlog

from streamd.registry import Registry
from streamd.registry.outcome import Refusals
from streamd.replica.models import records
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import ModelsTopic
from streamd.replica.models.trainer_term import TrainerTerm

logger = structlog.get_logger()


class TrainerTopic:
    """Reads and appends records in the trainer's term. Owner: the models publisher.

    state: of the topic, as of the last read.
    """

    def __init__(self, topic: ModelsTopic, registry: Registry, trainer_term: TrainerTerm) -> None:
        """trainer_term: the term that this trainer has claimed."""
        self._topic = topic
        self._registry = registry
        self._term = trainer_term
        self._refusals = Refusals(registry)
        self.state = ModelsState()

    def read(self, wait_seconds: float = 0.0) -> None:
        """Read the topic to its end. Raises: FencedError if a later trainer has claimed; then
        nothing more is appended."""
        self.state.take(self._topic.read(wait_seconds))
        self._term.check(self._topic, self.state)
        # Let servers here follow the newest move that the topic has, and see refused requests. If
        # the store is slow, a newer version here may have taken its memory already.
        self._refusals.tell(self.state.refused)
        if self.state.moves and self._can_serve(self.state.champion):
            self._registry.journal.show(self.state.moves[-1])

    def _can_serve(self, name: str) -> bool:
        """Whether a version is here, with its memory."""
        if not (self._registry.folder / name).exists():
            return False
        return self._registry.is_servable(self._registry.manifest(name))

    def append(self, made: Iterable[Callable[[int], records.Known]]) -> None:
        """Append records, each made with its number, and apply them as all readers do: from the
        topic."""
        number = self.state.number
        for make in made:
            number += 1
            self._topic.append(records.encode(make(number)))
        if number != self.state.number:
            self.read()

    def refuse(self, request: str, reason: str) -> None:
        """Refuse a request."""
        logger.warning("request_refused", request=request, reason=reason)
        self.append(
            [
                lambda number: records.Refused(
                    term=self.state.term,
                    number=number,
                    request=request,
                    reason=reason[: records.MAX_TEXT],
                )
            ]
        )

    def remove_member(self, name: str) -> None:
        """Remove a member, so that compaction does not wait for it."""
        self._topic.append(records.encode(records.Left(term=self.state.term, member=name)))
        self.read()

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()
