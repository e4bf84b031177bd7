"""A seed's world: machines whose roles run streamd's own code, the broker, what goes wrong, and the checks."""

import shutil
import tempfile
from pathlib import Path

from streamd.errors import StreamdError
from streamd.eventlog.journal import journal
from streamd.eventlog.upkeep.verify import verify_log
from streamd.replica.follower.follower import Follower
from streamd.store.changelog import changelog_topic
from tests.replica.directories import difference
from tests.simulator import seams, sets
from tests.simulator.broker import Broker
from tests.simulator.checks import Checks, CutShort
from tests.simulator.faults import Faults
from tests.simulator.history import PlainReader
from tests.simulator.machines import Machine
from tests.simulator.moves import Moves
from tests.simulator.operator import LOG
from tests.simulator.scheduler import Failure, Scheduler
from tests.simulator.scribe import Scribes
from tests.simulator.workload import Producers

SECONDS = 120.0
"""Virtual time with load and faults."""
CALM_SECONDS = 150.0
"""Longest time after it until all is read and shown everywhere."""
IN_MEMORY = "/dev/shm"
"""Where directories lie if there is such a file system: no real disk is waited for."""
KINDS = (("leader",), ("leader", "replica"), ("leader", "replica"), ("standby", "standby"), ("standby", "standby", "replica"),
         ("standby", "standby", "standby"))
"""What the machines of a seed are; one alone that leads has no changelog."""
TRAINED = 0.0
"""Share of the seeds in which machines that may lead have a trainer; `--trained` sets it."""
SCRIBED = 0.3
"""Share of the seeds without trainers in which others put lines into the outbox."""
SMALL_MESSAGE_BYTES = 72_000
"""With which the changelog has most commits in several parts."""
NAMES = "abcd"
"""Of machines."""
CUT_SHORT = "a commit and the compaction of its rows were shown at once"
LINES = 40
"""Lines of a journal file, so that files end often."""


class World:
    """All of one seed. Owner: who runs it."""

    def __init__(self, seed, stop_at=None, without=frozenset()):
        """without: what the seed leaves out of what it draws: numbers of faults, and names of parts of the workload."""
        self.seed, self.without = seed, frozenset(without)
        self.scheduler = Scheduler(seed)
        self.scheduler.stop_at = stop_at
        self.has_trainers = self.scheduler.stream("trainers").random() < TRAINED
        self._chance = self.scheduler.stream("settings")
        self.odds = self._chance.choice([0, 1, 10])
        """How much likelier the broker's small faults are than usual."""
        self.broker = Broker(self.scheduler, self._chance.choice([1, 3]))
        self.broker.message_bytes = self._chance.choice([self.broker.message_bytes, SMALL_MESSAGE_BYTES])
        self.checks = Checks(self.broker)
        base = IN_MEMORY if Path(IN_MEMORY).is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"simulator-{seed}-", dir=base))
        self.has_sets = self._chance.random() < 0.4
        self.label_dim = self._chance.choice([0, 1])
        self.num_sets = 2
        """Edge sets of which there are events, in a log that declares them."""
        if not self.has_trainers and self.scheduler.stream("scribes").random() < SCRIBED:
            self.checks.model.learned.scribes = Scribes()
        self.machines, self.faults, self.producers = [], Faults(self), Producers(self)
        self.is_cut_short = False
        """Whether it ended because the checks cannot tell any more, as `CutShort` says."""
        if self.has_sets:
            self.checks.topics = list(sets.SETTINGS["kafka__topics"])
        self.moves, self.folder_locks = Moves(self), {}
        """Who is champion; path of a lock file -> who has it."""
        self.kinds, self.settings = KINDS, {}
        """What the machines may be, and settings in the place of those drawn."""

    @property
    def members(self):
        """The machines that were not taken away."""
        return [machine for machine in self.machines if not machine.has_left]

    def stamp(self, machine):
        """Wall time in milliseconds; of the world where `machine` is None."""
        return int((seams.EPOCH + self.scheduler.now + (0.0 if machine is None else machine.skew)) * 1000)

    def shown(self, machine):
        """A machine has just written what readers may see."""
        task, self.scheduler.current = self.scheduler.current, None
        try:
            self.checks.look(machine.directory)
            if self.has_trainers:
                self.moves.follow(machine)
        except CutShort:
            self.is_cut_short = True
            self.scheduler.fail(CUT_SHORT)
        except Failure as failure:
            self.scheduler.fail(str(failure))
        except Exception as error:  # noqa: BLE001 - what a reader cannot read is a finding
            self.scheduler.fail(f"a reader of {machine.name} failed: {type(error).__name__} {error}")
        finally:
            self.scheduler.current = task

    def models_shown(self, machine):
        """The servers of a machine follow another move from now on."""
        task, self.scheduler.current = self.scheduler.current, None
        try:
            self.moves.look(machine)
        except Failure as failure:
            self.scheduler.fail(str(failure))
        except Exception as error:  # noqa: BLE001 - a champion that cannot be loaded is a finding
            self.scheduler.fail(f"servers of {machine.name} cannot follow a move: {type(error).__name__} {error}")
        finally:
            self.scheduler.current = task

    def _make_machines(self):
        """Machines of one log, with the same settings but for what each is."""
        chance = self._chance
        members = chance.choice(self.kinds)
        values = {
            "telemetry__archive_port": 0, "stream__time_unit": "ms", "stream__label_dim": self.label_dim,
            **(sets.SETTINGS if self.has_sets else {"kafka__topics": ["events"], "stream__edge_feature_dim": 1, "stream__node_feature_dim": 1}),
            "windows__width_seconds": chance.choice([60, 3600]),
            "ingest__segment_edges": chance.choice([256, 4096]),
            "ingest__commit_interval_seconds": chance.choice([0.01, 0.1, 1.0]),
            "ingest__merge_wait_seconds": chance.choice([0.0, 0.2, 2.0]),
            "ingest__late_policy": chance.choice(["clamp", "clamp", "dead_letter"]),
            "ingest__idle_timeout_seconds": chance.choice([0, 10, 60]),
            "ingest__max_ahead_seconds": chance.choice([5, 60]),
            "retention__max_age_seconds": chance.choice([None, None, 30]),
            "ingest__max_record_events": chance.choice([4, 100_000]),
            "ingest__on_data_loss": chance.choice(["fail", "continue"]) if self.faults.has_others else "fail",
        }
        if len(members) > 1:
            (self.folder / "store").mkdir()
            values |= {"log__name": LOG, "log__store": f"file://{self.folder}/store",
                       "log__manifest_seconds": chance.choice([3, 10, 600]), "leader__timeout_seconds": chance.choice([2, 3, 10])}
        if self.has_trainers:
            # A member that lost its volume is not waited for any longer.
            values |= {"holds__lease_seconds": 60}
        values |= {name: value for name, value in self.settings.items() if len(members) > 1 or not name.startswith("log__")}
        return [Machine(self, name, **values, log__member=member) for name, member in zip(NAMES, members, strict=False)]

    def add_machine(self):
        """Another machine joins, with an empty volume and the settings of one that is there. It may lead where others may."""
        values = dict(self.machines[0].values)
        values["log__member"] = values["log__member"].replace("leader", "replica")
        if self.num_sets == len(sets.GROWN):
            values["graph__edge_sets"] = sets.GROWN
        self.machines.append(Machine(self, NAMES[len(self.machines)], **values))
        self.machines[-1].start()

    def run(self, seconds=SECONDS):
        """Run all of the seed. Raises: Failure."""
        lines, journal.FILE_LINES = journal.FILE_LINES, LINES
        with seams.installed(self):
            try:
                self._run(seconds)
            finally:
                journal.FILE_LINES = lines
                self._end()

    def _run(self, seconds):
        chance = self._chance
        for name in self.checks.topics:
            self.broker.create(name, chance.randint(1, 4))
        self.machines = self._make_machines()
        if len(self.machines) > 1:
            self.faults.replicate()
        self.checks.model.max_record_events = self.machines[0].settings.ingest.max_record_events
        self.checks.model.may_lose = self.machines[0].settings.ingest.on_data_loss == "continue"
        for machine in self.machines:
            machine.start()
        self.producers.begin()
        self.faults.begin()
        self.scheduler.run(seconds)
        self._calm()

    def _calm(self):
        """Nothing more goes wrong: all must be read, shown, and end when told to."""
        self.producers.end()
        self.faults.end()
        self.scheduler.note("all faults are over")
        if self.has_trainers:
            self.moves.ask(self.members[-1])
        until = self.scheduler.now + CALM_SECONDS
        while (why := self._unsettled()) and self.scheduler.now < until:
            self.scheduler.run(1.0)
        if why:
            raise Failure(f"{CALM_SECONDS:.0f} s after the faults ended: {why}")
        self._stop()
        self._compare()

    def _unsettled(self):
        """What is not done yet, in words; "" where all is."""
        if why := self.checks.unread():
            return why
        if self.faults.operator.lacks_changelog:
            return "the log is not published anew yet"
        if self.faults.operator.compaction_waits():
            return "nobody has compacted"
        if why := self.moves.unsettled(self.members):
            return why
        newest = len(self.checks.history)
        behind = [f"{m.name} shows commit {m.directory.shown} of {newest}" for m in self.members if m.directory.shown < newest]
        return "; ".join(behind)

    def _stop(self):
        """All roles stop when they are told to."""
        for machine in self.machines:
            machine.is_wanted = False
            machine.stop()
        self.scheduler.run(30.0)
        if running := [process.name for machine in self.machines for process in machine.processes]:
            raise Failure(f"{', '.join(running)} goes on 30 s after it was told to stop")

    def _compare(self):
        """Bring all directories to the end of the changelog: then they have the same bytes, and each verifies."""
        self.checks.check_letters()
        self.moves.check_end(self.members)
        topic = self.broker.topics.get(changelog_topic(LOG))
        for machine in self.members:
            if topic is not None:
                reader = PlainReader(topic)
                follower = Follower(machine.data_dir, reader)
                while reader.position < reader.bounds()[1]:
                    follower.step(0)
                follower.close()
            self.checks.begin(machine.directory)
            self.checks.look(machine.directory)
            self.checks.model.compare(machine.directory)
            if damaged := verify_log(machine.data_dir)[1]:
                raise Failure(f"{machine.name} has damage: {damaged}")
            if why := difference(self.members[0].data_dir, machine.data_dir):
                raise Failure(f"{self.members[0].name} and {machine.name} differ: {why}")

    def _end(self):
        """End all threads of the seed, and remove its files."""
        self.scheduler.failure = ""
        self.scheduler.stop_at = None
        for machine in self.machines:
            machine.is_wanted = False
            for process in machine.processes:
                self.scheduler.kill(process)
        self.scheduler.run(0.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def run_seed(seed, seconds=SECONDS, stop_at=None, without=()):
    """Run a seed. Returns: the world, and why it failed, "" where it did not."""
    world = World(seed, stop_at, without)
    try:
        world.run(seconds)
    except CutShort:
        world.is_cut_short = True
    except Failure as failure:
        return world, "" if world.is_cut_short else str(failure)
    except StreamdError as error:
        return world, f"what the run left cannot be read: {type(error).__name__} {error}"
    return world, ""
