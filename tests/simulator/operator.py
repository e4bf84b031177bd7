"""People at work on the topics who do not ask streamd: they trim them, remove them and make them again. And the operator, who does what
the refusals that follow and docs/replicas.md ask for."""

import shutil
from functools import partial

from streamd.errors import ChangelogError, DataLossError
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogId
from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import last_state
from streamd.eventlog.upkeep.holds import ask_to_compact, asked_to_compact
from streamd.events import Schema
from streamd.replica.follower.bootstrap import newest_manifest
from streamd.store import manifests
from streamd.store.changelog import changelog_topic
from streamd.store.directory import copy_directory
from streamd.store.objects import Store
from streamd.store.restore import choose, restore
from streamd.store.upload import upload
from tests.simulator.clients import GHOST_SECONDS
from tests.simulator.sets import GROWN

LOG = "log"
"""Name of the log of several machines."""
SEES_AFTER = 3.0, 20.0
"""Seconds after which the operator acts on a refusal."""
GROWS_WITHIN = 20.0
"""Seconds in which all machines get the settings of a grown log."""
STOPS_WITHIN = 20.0
"""Seconds after which roles that were told to stop are killed."""
REMADE_AFTER = 0.3, 8.0
"""Seconds without the topic."""


class Backup:
    """Of one log: a copy of its directory, or objects in a store of its own."""

    def __init__(self, path, is_copy):
        self.name, self._path, self._is_copy = f"backup {path.name}", path, is_copy

    def make(self, data_dir):
        """Raises: StreamdError, OSError."""
        if self._is_copy:
            copy_directory(data_dir, self._path)
        else:
            upload(data_dir, Store(f"file://{self._path}"))

    def restore(self, data_dir):
        """Raises: StreamdError, OSError."""
        if self._is_copy:
            copy_directory(self._path, data_dir)
        else:
            store = Store(f"file://{self._path}")
            restore(store, choose(store), data_dir)


class Operator:
    """Passes over a loss of events, by `ingest.on_data_loss: continue` on all machines, and publishes a log anew whose changelog was removed.
    Owner: the world.

    has_lost: whether records were taken away that the log may have needed. has_acted: whether the loss may be passed over.
    lacks_changelog: whether the changelog was removed and the log is not published anew yet.
    """

    def __init__(self, world):
        self._world, self._random = world, world.scheduler.stream("operator")
        self.has_lost = self._acts = self.has_acted = False
        self.lacks_changelog = False
        self._has_trimmed = False
        """Whether somebody trimmed the changelog, or a machine began from a backup, so that a fixed leader may need the newest manifest."""
        self._place, self._asked = None, set()
        """Event up to which the newest compaction was asked for, and names of the machines that were."""
        self.backups, self._num_backups = [], 0

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

    def declare(self):
        """Declare another edge set on one machine after the other, and start each again. Events of it come from the begin on."""
        self._world.num_sets = 3
        for machine in self._world.machines:
            self._world.scheduler.at(self._random.uniform(0.0, GROWS_WITHIN), partial(self._configure, machine))

    def _configure(self, machine):
        machine.configure(graph__edge_sets=GROWN)
        machine.stop()

    def compact(self):
        """Ask for the removal of all that is deleted up to now: by the command, or where no trainer would answer it, on each machine that may lead,
        as a trainer does when all have answered."""
        newest = max(self._world.members, key=lambda machine: machine.directory.shown)
        log = LogReader.open(newest.data_dir) if newest.directory.shown == len(self._world.checks.history) else None
        if log is not None and log.deletions.count and not self.lacks_changelog:
            model, place = self._world.checks.model, log.deletions.newest_place
            model.ask_compaction()
            if self._world.has_trainers and newest.settings.log.name:
                self._world.moves.compact(newest, place)
                return
            self._place = place
            self._asked.clear()
            model.compact(*model.deleted())
            self._ask()

    def _ask(self):
        for machine in self._may_lead():
            if machine.name not in self._asked and (machine.data_dir / "published").exists():
                ask_to_compact(machine.data_dir, self._place)
                self._asked.add(machine.name)

    def _may_lead(self):
        return [machine for machine in self._world.members if machine.settings.log.member != "replica"]

    def forget(self, machine):
        """A machine has lost its volume, and with it what it was asked for."""
        self._asked.discard(machine.name)

    def compaction_waits(self):
        """Whether a compaction was asked for that nobody has done. Those that lost the request are asked again."""
        if self._place is None:
            return False
        self._ask()
        return not any(m.name in self._asked and asked_to_compact(m.data_dir) is None for m in self._may_lead())

    def trim_changelog(self):
        """Somebody deletes the begin of the changelog, as far as the newest manifest does not need it."""
        topic = self._world.broker.topics.get(changelog_topic(LOG))
        if topic is None or self.lacks_changelog:
            return
        manifest = newest_manifest(Store(self._world.machines[0].settings.log.store), ChangelogId("cluster", topic.id, topic.name))
        partition = topic.partitions[0]
        if manifest is not None and manifest.changelog_offset > partition.start:
            self._has_trimmed = True
            partition.trim(self._random.choice([manifest.changelog_offset, self._random.randint(partition.start, manifest.changelog_offset)]))

    def retire(self, machine):
        """Take a machine away for good, if another one that may lead stays."""
        if not self.lacks_changelog and [m for m in self._may_lead() if m is not machine]:
            machine.has_left, machine.is_wanted = True, False
            machine.stop()
            self._world.scheduler.at(STOPS_WITHIN, lambda: [self._world.scheduler.kill(process) for process in machine.processes])

    def back_up(self, machine):
        """Copy a machine's directory, or upload it to a store, while its roles run."""
        topic = self._world.broker.topics.get(changelog_topic(LOG))
        backup = self._new_backup()

        def main():
            backup.make(machine.data_dir)
            # One of a changelog that was removed meanwhile helps nobody.
            if topic is self._world.broker.topics.get(changelog_topic(LOG)):
                self.backups.append(backup)

        machine.visit("backup", main)

    def _new_backup(self):
        self._num_backups += 1
        return Backup(self._world.folder / "backups" / str(self._num_backups), self._random.random() < 0.5)

    def restore(self, machine):
        """Give a machine a new volume with a backup. A log without a changelog has only what is backed up when its roles have ended."""
        if machine.settings.log.store:
            if self.backups and not self.lacks_changelog:
                self._has_trimmed = True
                machine.strike(partial(machine.begin_from, self._random.choice(self.backups)))
        else:
            machine.strike(partial(self._move, machine))

    def _move(self, machine):
        if (machine.data_dir / "published").exists():
            backup = self._new_backup()
            backup.make(machine.data_dir)
            machine.begin_from(backup)

    def _lost(self):
        self.has_lost = True
        if not self._acts:
            self._acts = True
            self._world.scheduler.at(self._random.uniform(*SEES_AFTER), self._pass_over)

    def is_expected(self, error):
        """Whether a role may end for good by an error."""
        if isinstance(error, ChangelogError):
            return self.lacks_changelog
        return isinstance(error, DataLossError) and self.has_lost

    def restores(self, error, machine):
        """Whether a fixed leader gets the newest manifest, as its refusal asks for."""
        return isinstance(error, ChangelogError) and self._has_trimmed and not self.lacks_changelog and machine.settings.log.member == "leader"

    def starts_again(self, error):
        """Whether a role that ended for good, as expected, is started again at once."""
        return self.has_acted and isinstance(error, DataLossError)

    def lose_changelog(self):
        """Somebody removes the changelog, and perhaps makes it again."""
        world, name = self._world, changelog_topic(LOG)
        if self.lacks_changelog or name not in world.broker.topics or any(not (m.data_dir / "published").exists() for m in world.members):
            return
        self.lacks_changelog = True
        self.backups.clear()
        world.broker.remove(name)
        if self._random.random() < 0.5:
            world.scheduler.at(self._random.uniform(*REMADE_AFTER), lambda: name in world.broker.topics or world.broker.create(name, 1))
        world.scheduler.at(self._random.uniform(*SEES_AFTER), self._stop_all)

    def _stop_all(self):
        self._world.scheduler.note("the operator stops all, to publish the log anew")
        for machine in self._world.members:
            machine.is_wanted = False
            machine.stop()
        self._world.scheduler.at(STOPS_WITHIN, self._kill_all)

    def _kill_all(self):
        for process in [process for machine in self._world.machines for process in machine.processes]:
            self._world.scheduler.kill(process)
        # Records that they had sent may still be on their way to the old topic.
        self._world.scheduler.at(2 * GHOST_SECONDS, self._publish_anew)

    def _publish_anew(self):
        """Begin a changelog with the log of the machine that has most of it."""
        world, name = self._world, changelog_topic(LOG)
        newest = max(self._may_lead(), key=lambda machine: last_state(machine.data_dir, Schema()).seq)
        world.scheduler.note(f"the operator publishes the log of {newest.name} anew")
        if name in world.broker.topics:
            world.broker.remove(name)
        (newest.data_dir / CHANGELOG).unlink(missing_ok=True)
        newest.disk.forget()
        shutil.rmtree(world.folder / "store" / manifests.FOLDER, ignore_errors=True)
        newest.is_wanted = True
        newest.start()
        self._start_others(newest)

    def _start_others(self, newest):
        """Start the others with empty volumes, once there is a manifest."""
        if not manifests.names(Store(newest.settings.log.store)):
            self._world.scheduler.at(1.0, partial(self._start_others, newest))
            return
        self.lacks_changelog = False
        for machine in self._world.members:
            if machine is not newest:
                machine.begin_anew()
                machine.is_wanted = True
                machine.start()

    def _pass_over(self):
        """Set it, and start all roles again. Until then nothing may be passed over."""
        self._world.scheduler.note("the operator passes over the loss")
        self.has_acted = self._world.checks.model.may_lose = True
        for machine in self._world.machines:
            machine.configure(ingest__on_data_loss="continue")
            machine.stop()
            machine.start()
