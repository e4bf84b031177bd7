"""What goes wrong, drawn by a seed: kills at any seam, torn writes, power cuts, disks that refuse, networks, brokers, clocks."""

import itertools
import re
from functools import partial

from streamd.replica.leader import leading
from streamd.store.changelog import changelog_topic
from tests.simulator.operator import LOG, Operator

MEAN_SECONDS = 4.0, 15.0, 60.0
"""Mean times between two faults, of which a seed has one."""
MOST_MACHINES = 4
"""That a log ever had; those that left are counted."""
CALLS = 1, 10, 100, 1000
"""Most seams, or calls of the disk, until a fault strikes."""


class Faults:
    """Draws the faults of a seed. Owner: the world. counts: how many of each kind came. has_others: whether others trim and remove
    the topic of events."""

    def __init__(self, world):
        self._world, self._plan = world, world.scheduler.stream("faults")
        self._random = self._plan
        """Of the fault that is drawn now."""
        self._mean = self._plan.choice(MEAN_SECONDS)
        kinds = [self._kill, self._kill_at, self._torn, self._power, self._disk_error, self._cut, self._broker, self._election, self._restart,
                 self._grow, self._clock, self._ask, self._volume, self._lie, self._compact, self._restore]
        self.operator = Operator(world)
        self.has_others = self._plan.random() < 0.3
        if world.has_sets:
            kinds += [self._declare]
        if world.has_trainers:
            kinds += [self._move]
        if self.has_others:
            kinds += [self._trim, self._remake, self._stray, self._remove_changelog]
        # Each seed leaves some out, so that what one hides another shows.
        self._kinds = [kind for kind in kinds if self._plan.random() < 0.7] or [self._kill]
        self.counts, self.is_on, self._numbers = {}, True, itertools.count()
        self.numbers = []
        """Of the faults that came."""
        self._copies = set()
        """(Id of the changelog's topic, offset) of copies of records with their headers, which look like another leader's."""

    def replicate(self):
        """Draw also what only a log on several machines has."""
        kinds = [self._back_up, self._leave, self._join, *([self._trim_changelog] if self.has_others else [])]
        self._kinds += [kind for kind in kinds if self._plan.random() < 0.7]

    def begin(self):
        self._world.scheduler.at(self._plan.expovariate(1 / self._mean), self._turn)

    def _turn(self):
        if not self.is_on:
            return
        number = next(self._numbers)
        # Each has random numbers of its own, so that the others stay when it is left out.
        self._random = self._world.scheduler.stream(f"fault {number}")
        kind = self._random.choice(self._kinds)
        machine = self._random.choice(self._world.members)
        if number not in self._world.without:
            name = kind.__name__.strip("_")
            self.counts[name] = self.counts.get(name, 0) + 1
            self.numbers.append(number)
            self._world.scheduler.note(f"fault {number}: {name} of {machine.name}")
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

    def _kill_at(self, machine):
        """Kill at a seam of a kind that its role has called, each kind as likely as the others: most turns are of a few kinds only."""
        role = self._random.choice(sorted(machine.roles))
        kinds = sorted(self._world.scheduler.seams.get(role, ()))
        if kinds:
            machine.kill_at(role, self._random.choice(kinds), self._random.random() < 0.5)

    def _torn(self, machine):
        machine.disk.plan(self._calls(), "torn")

    def _power(self, machine):
        machine.cut_power(self._random.choice(sorted(machine.roles)), self._calls())

    def _lie(self, machine):
        """Its disk says of writes that they are durable, and loses them at a power cut soon after. Only the changelog has them then."""
        if machine.settings.log.store and not self.operator.lacks_changelog:
            machine.disk.lies = True
            role, calls = self._random.choice(sorted(machine.roles)), self._calls()
            self._later(self._random.uniform(0.0, 10.0), lambda: machine.cut_power(role, calls))

    def _volume(self, machine):
        # With the changelog, it would be all that is left of the log.
        if machine.settings.log.store and not self.operator.lacks_changelog:
            machine.lose_volume()

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
            self._restart_soon()

    def _declare(self, machine):
        if self._world.num_sets == 2:
            self.operator.declare()

    def _compact(self, machine):
        self.operator.compact()

    def _restore(self, machine):
        self.operator.restore(machine)

    def _back_up(self, machine):
        self.operator.back_up(machine)

    def _leave(self, machine):
        self.operator.retire(machine)

    def _join(self, machine):
        if len(self._world.machines) < MOST_MACHINES and not self.operator.lacks_changelog:
            self._world.add_machine()

    def _trim_changelog(self, machine):
        self.operator.trim_changelog()
        # Positions in it that are not durable yet may be lost just now.
        for one in self._world.members if self._random.random() < 0.5 else ():
            self._later(self._random.uniform(0.0, 3.0), partial(one.cut_power, "follow" if "follow" in one.roles else "ingest", 0))

    def _trim(self, machine):
        self.operator.trim()
        self._restart_soon()

    def _remake(self, machine):
        self.operator.remake()
        self._restart_soon()

    def _restart_soon(self):
        """Now and then somebody starts all anew while the roles still look for what changed."""
        if self._random.random() < 0.5:
            self._later(self._random.uniform(0.0, 10.0), lambda: [machine.stop() for machine in self._world.machines])

    def _remove_changelog(self, machine):
        self.operator.lose_changelog()

    def _stray(self, machine):
        """A console producer writes to the changelog, or a tool copies records of it with their headers or without."""
        topic = self._world.broker.topics.get(changelog_topic(LOG))
        if topic is not None:
            entries = topic.partitions[0].entries
            copied = self._random.choice(entries[-20:]) if entries and self._random.random() < 0.7 else None
            headers = copied.headers if copied is not None and self._random.random() < 0.5 else ()
            offset = topic.partitions[0].append(b"stray" if copied is None else copied.value, headers=headers)
            if headers:
                self._copies.add((topic.id, offset))

    def fences(self, error):
        """Whether a leader was fenced by a copy of a record, so that the operator starts it again, as the error says. error: FencedError."""
        named = re.search(r"another process published in term \d+ at offset (\d+) of the changelog", str(error))
        topic = self._world.broker.topics.get(changelog_topic(LOG))
        return named is not None and topic is not None and (topic.id, int(named[1])) in self._copies

    def _move(self, machine):
        """Now and then the operator promotes several times in a row, on several machines."""
        for _ in range(self._random.choice([1, 1, 4])):
            self._later(self._random.uniform(0.0, 5.0), partial(self._world.moves.ask, self._random.choice(self._world.members)))

    def _clock(self, machine):
        """Wall time jumps, as an operator or NTP sets it."""
        machine.skew = self._random.uniform(-20.0, 20.0)

    def _ask(self, machine):
        """An operator asks a standby to lead."""
        # Now and then all at once, so that several claim the same term.
        asked = self._world.members if self._random.random() < 0.3 else [machine]
        for one in asked:
            if one.settings.log.member == "standby":
                leading.ask_to_lead(one.data_dir, 20.0)
