"""Requests to the trainer: moves and compactions that the operator asks for on any machine, and what must be true of them."""

import itertools
from dataclasses import dataclass

from streamd.errors import UntakenError, VersionError
from streamd.eventlog import line_outbox as outbox
from streamd.registry import Registry
from streamd.registry.journal import Move, decoded_moves
from streamd.registry.outcome import Waiting
from streamd.registry.registry import find_damage, read_manifests
from streamd.replica.models.state import ModelsState
from streamd.replica.models.topic import KafkaModelsTopic
from streamd.replica.move_requests import ask_everywhere, compaction_wait, moves_by_request
from streamd.store.changelog import models_topic
from tests.simulator.operator import LOG
from tests.simulator.scheduler import Failure

WAITS = 10.0
"""Seconds that the operator's command waits for the trainer."""


@dataclass
class Ask:
    """What the operator asked for. version: "" for a rollback. done: the move, False where it was refused, None where nobody knows yet.
    queued: id of a move that waits for ingest, and will surely be made."""

    version: str
    done: Move | bool | None = None
    queued: str = ""


class Moves:
    """Owner: the world. asks: by the reason that each gives. compactions: id of the request -> edges and labels that are to go. state: of the
    models topic, folded by the product. made: all moves, by the topic, or by a log of one machine."""

    def __init__(self, world):
        self._world, self._random, self._numbers = world, world.scheduler.stream("moves"), itertools.count()
        self.asks, self.compactions, self.state, self.made = {}, {}, ModelsState(), []
        self._read, self._shown, self._num_settled = 0, {}, 0
        """Records of the topic that were read; machine -> index of the newest move that its servers follow; moves that all machines have."""

    def ask(self, machine):
        """Promote one of the versions that a machine has, or roll back, as the command line does there."""
        registry = Registry.of(machine.settings)
        # Nearly always one that can serve: others are refused.
        made = [manifest for manifest in read_manifests(registry) if registry.is_servable(manifest) or self._random.random() < 0.1]
        if made:
            version = "" if self._random.random() < 0.3 else self._random.choice(made).name
            machine.visit("move", lambda: self._move(machine, version))

    def _move(self, machine, version):
        why = f"ask {next(self._numbers)}"
        ask = self.asks[why] = Ask(version)
        registry = Registry.of(machine.settings)
        moves = moves_by_request(machine.settings, registry, WAITS) if machine.settings.log.follows else registry
        try:
            done = moves.promote(version, "operator", why) if version else moves.rollback("operator", why)
            # What a trainer with the models topic made may be lost with its machine.
            is_lasting = not isinstance(done, Waiting) and (moves is not registry or not machine.settings.log.name)
            ask.done = done if is_lasting else None
        except UntakenError as error:
            ask.queued, ask.done = error.request, None if error.request else False
            self._world.scheduler.note(f"{why} waits as {error.request!r}: {error}")
        except VersionError as error:
            ask.done = False
            self._world.scheduler.note(f"{why} is refused: {error}")

    def compact(self, machine, event):
        """Ask all machines to remove all that is deleted up to now, as the command line does. event: that no delete follows."""
        deleted = self._world.checks.model.deleted()

        def ask():
            topic = KafkaModelsTopic(machine.settings.kafka, LOG)
            try:
                self.compactions[ask_everywhere(machine.settings, event, topic)] = deleted
            finally:
                topic.close()

        machine.visit("compact", ask)

    def read(self):
        """Read what is new in the topic, or in the log of one machine. Raises: Failure."""
        topic = self._world.broker.topics.get(models_topic(LOG))
        moves = self._world.checks.model.learned.moves
        if topic is not None:
            history = topic.partitions[0].history
            self.state.take([entry.value for entry in history[self._read:]])
            self._read = len(history)
            moves = self.state.moves
        for move in moves[len(self.made):]:
            self.made.append(move)
            self._check(move)

    def follow(self, machine):
        """A machine has just shown a commit, and servers follow the move in it. Raises: Failure."""
        before = len(self.made)
        self.read()
        if len(self.made) > before and not machine.settings.log.name:
            Registry.of(machine.settings).load(self.made[-1].champion)

    def _check(self, move):
        ask = self.asks.get(move.why)
        if ask is None:
            return
        if sum(one.why == move.why for one in self.made) > 1:
            raise Failure(f"{move.why} was done twice: {move}")
        if ask.done is False:
            raise Failure(f"{move.why} was refused, and done: {move}")
        if move.champion != (ask.version or move.shadow):
            raise Failure(f"{move.why} was to promote {ask.version or 'the shadow'}: {move}")

    def look(self, machine):
        """A machine's servers follow another move from now on. Raises: Failure."""
        self.read()
        found = decoded_moves((machine.data_dir / "models" / "shown.json").read_bytes())
        if not found:
            return
        if found[0] not in self.made:
            raise Failure(f"servers of {machine.name} follow a move that the models topic does not have: {found[0]}")
        index = self.made.index(found[0])
        if index < self._shown.get(machine.name, -1):
            raise Failure(f"servers of {machine.name} go back to move {index}, from {self._shown[machine.name]}: {found[0]}")
        self._shown[machine.name] = index
        # It must be whole before servers learn its name; a disk that lied may have lost parts of it, which the server refuses by its checksums.
        if not machine.has_lost_syncs:
            Registry.of(machine.settings).load(found[0].champion)

    def forget(self, machine):
        """A machine has lost its volume, and with it what waits for ingest and the trainer's checkpoint."""
        self._shown.pop(machine.name, None)
        if not machine.settings.log.name:
            self._world.checks.model.learned.may_repeat = True
            for ask in self.asks.values():
                ask.queued = ""

    def unsettled(self, members):
        """What is not everywhere yet, "" where all is."""
        self.read()
        for request in self.state.compactions():
            return f"a compaction is {compaction_wait(self.state, request.id)}"
        for machine in members if self.made else ():
            if machine.visitors:
                return f"{machine.visitors[0].name} has not ended"
            # A machine that does not lead may have a batch left.
            if not machine.settings.log.name and not outbox.is_empty(machine.data_dir):
                return f"lines wait for ingest of {machine.name}"
            if Registry.of(machine.settings).shown() != self.made[-1]:
                return f"servers of {machine.name} do not follow {self.made[-1]}"
        self._num_settled = len(self.made)
        return ""

    def check_end(self, members):
        """All machines have the moves of the topic, and what was answered stays. Raises: Failure."""
        self.read()
        for request, deleted in self.compactions.items():
            if request not in self.state.refused:
                self._world.checks.model.compact(*deleted)
        for why, ask in self.asks.items():
            if ask.done and ask.done not in self.made:
                raise Failure(f"{why} was answered by {ask.done}, which was not made")
            if ask.queued and ask.queued not in [move.request for move in self.made]:
                raise Failure(f"{why} was to be made as {ask.queued}, and was not")
        for machine in members if self.made else ():
            registry = Registry.of(machine.settings)
            if machine.settings.log.follows and (lost := [move for move in self.made[:self._num_settled] if move not in registry.journal.moves()]):
                raise Failure(f"{machine.name} lacks the moves {lost[:3]}, {len(lost)} in all")
            registry.load(registry.shown().champion)
            if damage := list(find_damage(registry)):
                raise Failure(f"{machine.name} has damaged versions: {damage}")
