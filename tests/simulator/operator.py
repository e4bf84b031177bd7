"""People at work on the topics of events who do not ask streamd: they trim it, remove it and make it again. And the operator, who does what
the refusals that follow ask for."""

from streamd.errors import DataLossError

SEES_AFTER = 3.0, 20.0
"""Seconds after which the operator acts on a refusal."""
REMADE_AFTER = 0.3, 8.0
"""Seconds without the topic."""


class Operator:
    """Passes over a loss of events, by `ingest.on_data_loss: continue` on all machines. Owner: the world.

    has_lost: whether records were taken away that the log may have needed. has_acted: whether the loss may be passed over.
    """

    def __init__(self, world):
        self._world, self._random = world, world.scheduler.random
        self.has_lost = self._acts = self.has_acted = False

    def trim(self):
        """Somebody deletes the begin of a partition, or all that can be read of it."""
        if (topic := self._world.broker.topics.get(self._random.choice(self._world.checks.topics))) is None:
            return
        partition = self._random.choice(topic.partitions)
        partition.trim(self._random.choice([partition.stable, self._random.randint(partition.start, partition.stable)]))
        self._lost()

    def remake(self):
        """Somebody removes the topic, and makes it again."""
        name = self._random.choice(self._world.checks.topics)
        if name in self._world.broker.topics:
            self._world.broker.remove(name)
            self._world.scheduler.at(self._random.uniform(*REMADE_AFTER), lambda: self._make(name))
            self._lost()

    def _make(self, name):
        """Make it again, and perhaps load much into it at once."""
        self._world.broker.create(name, self._random.randint(1, 4))
        for _ in range(self._random.choice([0, 0, 10, 100])):
            self._world.producers.send()

    def _lost(self):
        self.has_lost = True
        if not self._acts:
            self._acts = True
            self._world.scheduler.at(self._random.uniform(*SEES_AFTER), self._pass_over)

    def is_expected(self, error):
        """Whether a role may end for good by an error."""
        return isinstance(error, DataLossError) and self.has_lost

    def _pass_over(self):
        """Set it, and start all roles again. Until then nothing may be passed over."""
        self._world.scheduler.note("the operator passes over the loss")
        self.has_acted = self._world.checks.model.may_lose = True
        for machine in self._world.machines:
            machine.configure(ingest__on_data_loss="continue")
            machine.stop()
            machine.start()
