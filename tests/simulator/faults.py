"""What goes wrong, drawn by a seed: kills at any seam, torn writes, power cuts, disks that refuse, networks, brokers, clocks."""

from streamd.replica.leader import leading
from tests.simulator.operator import Operator

MEAN_SECONDS = 4.0, 15.0, 60.0
"""Mean times between two faults, of which a seed has one."""
CALLS = 1, 10, 100, 1000
"""Most seams, or calls of the disk, until a fault strikes."""


class Faults:
    """Draws the faults of a seed. Owner: the world. counts: how many of each kind came. has_others: whether others trim and remove
    the topic of events."""

    def __init__(self, world):
        self._world, self._random = world, world.scheduler.random
        self._mean = self._random.choice(MEAN_SECONDS)
        kinds = [self._kill, self._torn, self._power, self._disk_error, self._cut, self._broker, self._election, self._restart,
                 self._grow, self._clock, self._ask]
        self.operator = Operator(world)
        self.has_others = self._random.random() < 0.3
        if self.has_others:
            kinds += [self._trim, self._remake, self._stray]
        # Each seed leaves some out, so that what one hides another shows.
        self._kinds = [kind for kind in kinds if self._random.random() < 0.7] or [self._kill]
        self.counts, self.is_on = {}, True
        self.has_copies = False
        """Whether a record of the changelog was copied with its headers: a fixed leader then takes it for another's, until it is started again."""

    def begin(self):
        self._world.scheduler.at(self._random.expovariate(1 / self._mean), self._turn)

    def _turn(self):
        if self.is_on:
            kind = self._random.choice(self._kinds)
            machine = self._random.choice(self._world.machines)
            name = kind.__name__.strip("_")
            self.counts[name] = self.counts.get(name, 0) + 1
            self._world.scheduler.note(f"fault: {name} of {machine.name}")
            kind(machine)
            self.begin()

    def end(self):
        """Repair all."""
        self.is_on = False
        broker = self._world.broker
        broker.is_up = True
        broker.cut.clear()
        broker.deaf.clear()
        for topic in broker.topics.values():
            for partition in topic.partitions:
                if not partition.has_leader:
                    partition.elect()
        for machine in self._world.machines:
            machine.repair()

    def _later(self, seconds, call):
        self._world.scheduler.at(seconds, lambda: call() if self.is_on else None)

    def _calls(self):
        return self._random.randint(0, self._random.choice(CALLS))

    def _kill(self, machine):
        if machine.processes:
            self._random.choice(machine.processes).kill_in = self._calls()

    def _torn(self, machine):
        machine.disk.plan(self._calls(), "torn")

    def _power(self, machine):
        machine.cut_power(self._random.choice(sorted(machine.roles)), self._calls())

    def _disk_error(self, machine):
        machine.disk.plan(self._calls(), self._random.choice(["full", "broken", "unsynced"]))

    def _cut(self, machine):
        table = self._random.choice([self._world.broker.cut, self._world.broker.deaf])
        table.add(machine.name)
        self._later(self._random.uniform(0.1, 20.0), lambda: table.discard(machine.name))

    def _broker(self, machine):
        broker = self._world.broker
        broker.is_up = False
        self._later(self._random.uniform(0.1, 15.0), lambda: setattr(broker, "is_up", True))

    def _election(self, machine):
        partitions = [p for _, topic in sorted(self._world.broker.topics.items()) for p in topic.partitions]
        if not partitions:
            return
        partition = self._random.choice(partitions)
        partition.has_leader = False
        self._later(self._random.uniform(0.0, 10.0), partition.elect)

    def _restart(self, machine):
        machine.stop()

    def _grow(self, machine):
        topic = self._world.broker.topics.get(self._random.choice(self._world.checks.topics))
        if topic is not None and len(topic.partitions) < 8:
            topic.grow()

    def _trim(self, machine):
        self.operator.trim()

    def _remake(self, machine):
        self.operator.remake()

    def _stray(self, machine):
        """A console producer writes to the changelog, or a tool copies records of it with their headers or without."""
        topic = next((t for name, t in self._world.broker.topics.items() if name.endswith(".changelog")), None)
        if topic is not None:
            entries = topic.partitions[0].entries
            copied = self._random.choice(entries[-20:]) if entries and self._random.random() < 0.7 else None
            headers = copied.headers if copied is not None and self._random.random() < 0.5 else ()
            self.has_copies = self.has_copies or bool(headers)
            topic.partitions[0].append(b"stray" if copied is None else copied.value, headers=headers)

    def _clock(self, machine):
        """Wall time jumps, as an operator or NTP sets it."""
        machine.skew = self._random.uniform(-20.0, 20.0)

    def _ask(self, machine):
        """An operator asks a standby to lead."""
        # Now and then all at once, so that several claim the same term.
        asked = self._world.machines if self._random.random() < 0.3 else [machine]
        for one in asked:
            if one.settings.log.member == "standby":
                leading.ask_to_lead(one.data_dir, 20.0)
