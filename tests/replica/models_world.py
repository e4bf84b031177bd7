"""A models topic in memory, and a trainer's registry with versions that are small and real."""

import dataclasses
import json
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np

from streamd.errors import KafkaError
from streamd.eventlog.journal.changelog_position import CHANGELOG
from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.learned_lines import LearnedLines
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.upkeep.holds import Hold, write_hold
from streamd.events import Schema
from streamd.registry import Registry
from streamd.registry.candidate import Candidate, TrainResult
from streamd.replica.models.follower import ModelsFollower
from streamd.replica.models.publisher import ModelsPublisher
from streamd.replica.models.standby import TrainerStart
from streamd.replica.models.state import ModelsState
from streamd.replica.models.takeover import Takeover
from streamd.replica.models.trainer_term import TrainerTerm
from streamd.settings.loading import ModelSettings, TrainingSettings
from streamd.settings.paths import Paths
from streamd.storage import ImmutableFile
from streamd.store.objects import Store
from streamd.tensors import file_checksum
from streamd.training.handover import newest_checkpoint
from streamd.windows import Window
from streamd.windows.history import (
    FILE,
    HistoryReader,
    WindowRecord,
    append_record,
    truncate_records,
)
from tests.builders import settings, stream, write_log

MADE = tempfile.TemporaryDirectory()
LOG = Path(MADE.name) / "log"
write_log(LOG, *stream(), segment_edges=600)


class MemoryLog:
    """What Kafka has: the values, and how the next appends fail."""

    def __init__(self):
        self.values = []
        self.begin = 0
        """Values before it were deleted."""
        self.leader, self.changelog = None, Path(tempfile.mkdtemp(dir=MADE.name))
        """The directory of the machine that leads the log, and one with all commits, from which others have its learned lines."""
        self.is_away = False
        self.lose_next = self.keep_but_fail_next = False
        self.on_append = lambda: None


class MemoryTopic:
    """One client of the log, as `KafkaModelsTopic` is."""

    def __init__(self, log):
        self.log, self.at, self.begin = log, log.begin, log.begin

    def read(self, wait_seconds):
        if self.log.is_away:
            raise KafkaError("no broker")
        if self.log.begin != self.begin or self.at > len(self.log.values):
            raise KafkaError("the topic lost records")
        values, self.at = self.log.values[self.at :], len(self.log.values)
        return values

    def append(self, value):
        if self.log.is_away:
            raise KafkaError("no broker")
        lost, self.log.lose_next = self.log.lose_next, False
        failed, self.log.keep_but_fail_next = self.log.keep_but_fail_next, False
        if not lost:
            self.log.values.append(value)
            self.log.on_append()
        if lost or failed:
            raise KafkaError("not acknowledged")

    @property
    def changelog(self):
        return self.log.changelog

    @property
    def leader(self):
        return self.log.leader

    @leader.setter
    def leader(self, data_dir):
        self.log.leader = data_dir

    def close(self):
        pass


def follow_log(data_dir, topic):
    """Have the commits of the log, as by its changelog. topic: knows who leads, and a directory that stands for the changelog."""
    if topic.leader is not None and topic.leader.exists():
        _copy_log(topic.leader, topic.changelog)
    if data_dir != topic.leader:
        _copy_log(topic.changelog, data_dir)


def _copy_log(source, target):
    target.mkdir(exist_ok=True)
    if published_seq(target) < published_seq(source):
        for folder in ("journal", "learned"):
            shutil.rmtree(target / folder, ignore_errors=True)
            shutil.copytree(source / folder, target / folder)
        (target / "published").write_bytes((source / "published").read_bytes())


def lead_log(data_dir, topic):
    """Lead the log from now on; whoever led commits nothing more."""
    follow_log(data_dir, topic)
    if topic.leader is not None and topic.leader.exists():
        (topic.leader / CHANGELOG).touch()
    (data_dir / CHANGELOG).unlink(missing_ok=True)
    topic.leader = data_dir


def logged_windows(data_dir):
    """The records of windows in the log."""
    return [json.loads(line) for line in LearnedLines(data_dir, WINDOWS, data_dir / FILE).logged()]


class Killed(BaseException):
    """The process was killed at this step."""


def beginning_of(settings, open_topic, beat, stop=None):
    """What waits until a trainer may begin, as the train process makes it."""
    return TrainerStart(Paths.of(settings, "train"), settings.log, settings.holds.lease_seconds, lambda: Registry.of(settings), open_topic, beat,
                     stop or threading.Event())


def memory(n, parent=None):
    """Files of a memory: the messages, which differ in each version, and the rows, which versions share."""
    out = []
    for name in (f"messages-{n}", "rows"):
        path = Path(MADE.name) / name
        path.write_bytes(name.encode() * 50)
        out.append(ImmutableFile(path, file_checksum(path)))
    return tuple(out)


def candidate(n, parent=""):
    return Candidate(window=Window(n, n + 10, 0, n), edge=n, seq=1, weights={"w": np.full(2, n, np.float32)},
                     memory=lambda: memory(n), memory_us=5, parent=parent, facts=("met",), schema=Schema(),
                     scores={"live": {"mrr": 0.5}},
                     learned=TrainResult(loss=0.1, finite=True, tail_before=0.5, tail_after=0.6, num_tail=20),
                     model=ModelSettings(), training=TrainingSettings(), window_seconds=3600)


def window(n):
    return WindowRecord(start_us=n, end_us=n + 10, first_edge=n - 1, end_edge=n, num_scored=5, version=f"{n + 10}-{n}", scored_by="", promoted=True,
                        reason="", scores={}, loss=None, seconds={}, finished_at=float(n))


class TrainerSide:
    """A trainer's directory with a log of 600 events, and its publisher."""

    def __init__(self, folder, log, url, dies=lambda _: None, **more):
        """dies: called with the name of each step while it begins."""
        self.settings = settings(folder, registry__keep=3, log__name="t", log__store=url, **more)
        self.log, self.url = log, url
        if not (folder / "published").exists():
            shutil.copytree(LOG, folder)
        self.now, self.purged, self.is_half = 1_000_000.0, 0, False
        self.start(dies)

    def history_bytes(self):
        path = self.settings.data_dir / FILE
        return path.stat().st_size if path.exists() else 0

    def claim(self):
        """Begin as the train process does: claim, and take the newest checkpoint where this directory is behind."""
        self.registry = Registry.of(self.settings)
        self.trainer_term, self.state = TrainerTerm(self.settings.data_dir, "m", lambda: self.now, store=self.store()), ModelsState()
        topic = MemoryTopic(self.log)
        self.trainer_term.claim(topic, self.state)
        newest = self.state.checkpoints[-1] if self.state.checkpoints else None
        if newest is not None and not self.trainer_term.has_stored(newest.name):
            Takeover(self.settings.data_dir, self.registry, self.store(), self.on_step).take(newest, self.state)
            self.trainer_term.renew()
        # As a trainer does where it resumes.
        checkpoint = newest_checkpoint(self.settings.data_dir)
        counted = json.loads((checkpoint / "cursor.json").read_text())["history_bytes"] if checkpoint else 0
        truncate_records(self.settings.data_dir, counted)

    def store(self):
        return Store(self.url, 0.1, sleep=lambda _: None)

    def start(self, on_step=lambda _: None):
        """Start, as after a kill."""
        self.on_step = on_step
        lead_log(self.settings.data_dir, MemoryTopic(self.log))
        self.claim()
        self.registry.journal.show(self.registry.shown())
        self.publish(on_step)
        self.rest()

    def publish(self, on_step=lambda _: None):
        """Make the publisher, as after an error of Kafka."""
        self.on_step = on_step
        self.publisher = ModelsPublisher(Paths.of(self.settings, "train"), self.settings.holds.lease_seconds, self.registry,
                                         MemoryTopic(self.log), self.store(), self.trainer_term, lambda name: self.on_step(name), lambda: self.now)

    def learn(self, n, at=0.0):
        """Publish and record a window, write its checkpoint, and rest. at: when, so that each learning has a record of its own."""
        version = self.learn_half(n, at)
        self.checkpoint(n)
        return version

    def learn_half(self, n, at=0.0):
        """Publish and record a window, learned from the version that the checkpoint names, or that somebody chose by hand."""
        checkpoint = newest_checkpoint(self.settings.data_dir)
        parent = json.loads((checkpoint / "cursor.json").read_text())["version"] if checkpoint else ""
        result = self.registry.publish(candidate(n, self.registry.moved_by_hand() or parent))
        append_record(self.settings.data_dir, dataclasses.replace(window(n), finished_at=at or float(n)))
        return result.version

    def checkpoint(self, n):
        """Write a checkpoint with what makes it this one's, and a chunk of replay that it names."""
        train = self.settings.data_dir / "train"
        (train / "replay").mkdir(parents=True, exist_ok=True)
        (train / "replay" / f"{n:020d}.safetensors").write_bytes(f"chunk {n}".encode())
        folder = train / "checkpoints" / f"{n:020d}.000000"
        shutil.rmtree(train / "checkpoints", ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "state.safetensors").write_bytes(f"state {n}".encode())
        cursor = {"edge": n, "history_bytes": self.history_bytes(), "replay": {"offered": n, "chunks": [n]}, "nightly": "",
                  "version": self.registry.champion() or ""}
        (folder / "cursor.json").write_text(json.dumps(cursor))
        for old in (train / "replay").iterdir():
            if old.name != f"{n:020d}.safetensors":
                old.unlink()
        self.rest()

    def rest(self):
        """Nothing is under way: the state may be handed over."""
        write_hold(self.settings.data_dir, "train", Hold(0, self.purged))
        self.trainer_term.handovers.take()

    def step(self):
        self.rest()
        self.publisher.step()

    settle = step

    @property
    def edge(self):
        """The last window that is learned, 0 for none."""
        folders = list((self.settings.data_dir / "train/checkpoints").glob("*"))
        return int(folders[0].name.split(".")[0]) if folders else 0


class ReplicaSide:
    """A replica's directory, and what follows the topic into it."""

    def __init__(self, folder, log, url, **more):
        self.settings = settings(folder, registry__keep=3, log__name="t", log__store=url, log__member="replica", **more)
        self.log, self.url, self.now = log, url, 1_000_000.0
        if not (folder / "published").exists():
            shutil.copytree(LOG, folder)
        self.start()

    def start(self, on_step=lambda _: None):
        self.registry = Registry.of(self.settings)
        self.follower = ModelsFollower(self.settings.data_dir, self.settings.holds.lease_seconds, self.registry, MemoryTopic(self.log),
                                       Store(self.url, 0.1, sleep=lambda _: None), on_step, lambda: self.now)

    def step(self):
        follow_log(self.settings.data_dir, MemoryTopic(self.log))
        self.follower.step()


def content(data_dir):
    """What a machine has of versions, moves and windows: path -> bytes."""
    models = data_dir / "models"
    paths = [p for p in models.rglob("*") if p.is_file() and not any(x.startswith(".") for x in p.relative_to(models).parts)
             and p.name != "refused.json" and (p.name, p.stat().st_size) != ("shown.json", 0)]
    found = {str(p.relative_to(data_dir)): p.read_bytes() for p in paths}
    windows = b"".join(record.line() for record in HistoryReader(data_dir).refresh())
    return found | ({FILE: windows} if windows else {})
