"""A trainer that is killed, and one in another directory that goes on: weights to the bit, each window once."""

import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.torch import load_file

from streamd.clock import SystemClock
from streamd.errors import FencedError
from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.registry import Registry
from streamd.replica.models.follower import ModelsFollower
from streamd.replica.models.standby import leads
from streamd.settings.paths import Paths
from streamd.store.objects import Store
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from streamd.training.trainer import Trainer
from streamd.windows.history import HistoryReader
from tests.builders import HOUR, settings, stream, write_log
from tests.replica.models_world import (
    Killed,
    MemoryLog,
    MemoryTopic,
    beginning_of,
    content,
    follow_log,
    lead_log,
    logged_windows,
)
from tests.server.world import wait

ROOT = Path(__file__).parents[2]
SCHEMA = Schema(2, 0, 0)


class FileTopic:
    """A topic in a file, a record a line in hex: as Kafka has it for processes that come one after the other."""

    def __init__(self, path):
        self.path, self.at = path, 0

    def read(self, wait_seconds):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        values, self.at = [bytes.fromhex(line) for line in lines[self.at :]], len(lines)
        return values

    @property
    def changelog(self):
        return self.path.with_suffix(".log")

    @property
    def leader(self):
        path = self.path.with_suffix(".leader")
        return Path(path.read_text()) if path.exists() else None

    @leader.setter
    def leader(self, data_dir):
        self.path.with_suffix(".leader").write_text(str(data_dir))

    def append(self, value):
        with self.path.open("a") as file:
            file.write(value.hex() + "\n")

    def close(self):
        pass


class StopsWhenIdle(threading.Event):
    """Ends `Trainer.run` when it waits for the first time."""

    def wait(self, timeout=None):
        self.set()
        return True


def chosen(path, store, **more):
    return settings(path, stream__edge_feature_dim=2, windows__merge_after=0, log__name="t", log__store=f"file://{store}", **more)


def train(path, store, open_topic, on_step=lambda _: None, **more):
    """Begin as the train process does, and learn all closed windows. Each state is stored before the next window begins."""
    s = chosen(path, store, **more)
    lead_log(path, open_topic())
    beat = Heartbeat(path, "train")
    session = beginning_of(s, open_topic, beat).begin()

    def step(name):
        session.on_step(name)
        if name == "rest":
            wait(lambda: session._publisher.fenced or not session._term.handovers.is_waiting, 60)
        on_step(name)

    with closing(session):
        trainer = Trainer(s, Paths.of(s, "train"), "cpu", LogReader.open(path), Registry.of(s), SystemClock(), beat, step)
        trainer.run(StopsWhenIdle())
        # What the last window's checkpoint lets through is sent.
        topic = open_topic()
        wait(lambda: not session._term.handovers.is_waiting and topic.read(0.0) == [], 60)


def outcome(path):
    """Everything that must not depend on who learned it."""
    folder, = (path / "train/checkpoints").iterdir()
    state = {k: v.numpy().tobytes() for k, v in load_file(folder / "state.safetensors").items()}
    rows = [(r.start_us, r.end_edge, r.version, r.scores, r.loss, r.scored_by, r.surprise) for r in HistoryReader(path).refresh()]
    replay = {p.name: p.read_bytes() for p in (path / "train/replay").iterdir()}
    registry = Registry.of(settings(path))
    weights = {n: registry.manifest(n).checksums["model.safetensors"] for n in registry.names()}
    return {"state": state, "windows": rows, "replay": replay, "versions": weights,
            "moves": [(m.action, m.champion, m.shadow) for m in registry.journal.moves()]}


def assert_alike(path, want):
    found = outcome(path)
    for key in ("windows", "versions", "moves", "replay"):
        assert found[key] == want[key], key
    assert {k for k, v in found["state"].items() if want["state"][k] != v} == set()


def logs(tmp_path, *names, hours=6, num_edges=500):
    for name in names:
        write_log(tmp_path / name, *stream(num_edges, hours=hours), SCHEMA, watermark=1000 * HOUR)
    return [tmp_path / name for name in names]


def follow(path, store, log):
    """Bring a directory to what the topic says, as the follower beside it does."""
    s = chosen(path, store, log__member="replica")
    follow_log(path, MemoryTopic(log))
    follower = ModelsFollower(s.data_dir, s.holds.lease_seconds, Registry.of(s), MemoryTopic(log), Store(s.log.store))
    follower.step()
    return follower


@pytest.mark.parametrize(("step", "number", "more"), [
    ("publish", 3, {}), ("record", 2, {}),
    pytest.param("checkpoint", 4, {}, marks=pytest.mark.slow), pytest.param("learn", 1, {}, marks=pytest.mark.slow),
    pytest.param("publish", 30, {"hours": 40}, marks=pytest.mark.slow)])
def test_another_directory_goes_on_to_the_same_bits(tmp_path, step, number, more):
    alone, first, second, replica = logs(tmp_path, "alone", "first", "second", "replica", **more)
    other = MemoryLog()
    train(alone, tmp_path / "store-alone", lambda: MemoryTopic(other))
    want = outcome(alone)

    # The first trainer is killed amid a window.
    log, left, rested = MemoryLog(), [number], []

    def die(name):
        if name == "rest":
            rested.append(len(HistoryReader(first).refresh()))
        if name == step:
            left[0] -= 1
            if not left[0]:
                raise Killed

    with pytest.raises(Killed):
        train(first, tmp_path / "store", lambda: MemoryTopic(log), die)
    follow(replica, tmp_path / "store", log)
    shown = logged_windows(replica)
    assert len(shown) == rested[-1], "what was not stored is not shown, and what was stored is"

    # The other one goes on, and all that learns or follows has the same.
    train(second, tmp_path / "store", lambda: MemoryTopic(log))
    assert_alike(second, want)
    follow(replica, tmp_path / "store", log)
    assert logged_windows(replica)[: len(shown)] == shown and len(logged_windows(replica)) == len(HistoryReader(second).refresh())
    assert content(replica) == content(second)
    follow(first, tmp_path / "store", log)
    assert content(first) == content(second)

    # The first directory is taken again, as after the second machine was lost.
    train(first, tmp_path / "store", lambda: MemoryTopic(log))
    assert_alike(first, want)


def test_a_trainer_that_slept_ends_where_another_one_has_claimed(tmp_path):
    first, second = logs(tmp_path, "first", "second")
    log = MemoryLog()

    def sleep(name):
        # While it sleeps before its second window is published, the other one learns all of them.
        if name == "publish" and len(log.values) and not asleep and logged_windows(first):
            asleep.append(len(log.values))
            train(second, tmp_path / "store", lambda: MemoryTopic(log))
            asleep.append(len(log.values))

    asleep = []
    with pytest.raises(FencedError, match="Another trainer"):
        train(first, tmp_path / "store", lambda: MemoryTopic(log), sleep)
    assert asleep[0] < asleep[1] == len(log.values), "the one that woke up appends nothing"
    follow(first, tmp_path / "store", log)
    assert content(first) == content(second)


def kinds(log):
    return [json.loads(v)["record"]["type"] for v in log.values]


def test_a_standby_waits_until_ingest_leads_here_and_forgets_what_others_have_passed(tmp_path):
    first, second = logs(tmp_path, "first", "second")
    log = MemoryLog()
    train(first, tmp_path / "store", lambda: MemoryTopic(log))
    train(second, tmp_path / "store", lambda: MemoryTopic(log))
    s = chosen(first, tmp_path / "store", log__member="standby")
    ingest = Heartbeat(first, "ingest")
    ingest.touch("following")
    assert not leads(s.log, first)
    stop = threading.Event()
    begun = []
    thread = threading.Thread(target=lambda: begun.append(beginning_of(s, lambda: MemoryTopic(log), Heartbeat(first, "train"), stop).begin()))
    thread.start()
    wait(lambda: (beat := read_beat(first, "train")) is not None and beat.state == "standby" and not (first / "train/checkpoints").exists())
    before = len(log.values)
    ingest.touch("leading", leading=True)
    thread.join(60)
    assert kinds(log)[before:] == ["claimed"] and (first / "train/checkpoints").exists() and leads(s.log, first)
    begun[0].close()


def test_a_trainer_begins_once_kafka_and_store_are_back(tmp_path):
    first, second = logs(tmp_path, "first", "second")
    log = MemoryLog()
    train(first, tmp_path / "store", lambda: MemoryTopic(log))
    (tmp_path / "store").rename(tmp_path / "away")
    log.is_away = True
    s = chosen(second, tmp_path / "store")
    begun = []
    beginning = beginning_of(s, lambda: MemoryTopic(log), Heartbeat(second, "train"))
    beginning._store = Store(s.log.store, 0.1)
    thread = threading.Thread(target=lambda: begun.append(beginning.begin()))
    thread.start()
    wait(lambda: (beat := read_beat(second, "train")) is not None and beat.state == "waiting for broker")
    log.is_away = False
    wait(lambda: read_beat(second, "train").state == "waiting for store")
    (tmp_path / "away").rename(tmp_path / "store")
    thread.join(60)
    assert (second / "train/checkpoints").exists()
    begun[0].close()


SCRIPT = """
import os, signal, sys
from pathlib import Path
from streamd.gpu.device import make_torch_deterministic
make_torch_deterministic(1)
from tests.replica.test_models_resume import FileTopic, train
path, store, topic, step, number = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
left = [number]
def on_step(name):
    if name == step:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
train(path, store, lambda: FileTopic(topic), on_step)
"""


def process(path, store, topic, step="none", number=0):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(path), str(store), str(topic), step, str(number)]
    return subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, timeout=300).returncode


@pytest.mark.slow
@pytest.mark.parametrize(("step", "number"), [("publish", 2), ("record", 4), ("checkpoint", 3), ("rest", 3)])
def test_processes_that_are_killed_leave_it_to_the_next_one(tmp_path, step, number):
    alone, *both = logs(tmp_path, "alone", "first", "second")
    assert process(alone, tmp_path / "store-alone", tmp_path / "topic-alone") == 0
    want = outcome(alone)
    ends = [process(both[turn % 2], tmp_path / "store", tmp_path / "topic", step, number if turn == 0 else 2) for turn in range(4)]
    # The last ones may have so little left that no second step of that name comes.
    assert ends[0] == -9 and set(ends) <= {-9, 0}, ends
    assert process(both[0], tmp_path / "store", tmp_path / "topic") == 0
    assert_alike(both[0], want)


def test_time_passes_for_a_trainer_whose_ingest_is_gone(tmp_path):
    first, = logs(tmp_path, "first")
    s = chosen(first, tmp_path / "store", log__member="standby")
    log, ingest = MemoryLog(), Heartbeat(first, "ingest")
    ingest.touch("leading", leading=True)
    session = beginning_of(s, lambda: MemoryTopic(log), Heartbeat(first, "train")).begin()
    ingest.touch("following", leading=False)
    with closing(session):
        session.on_step("learn")
        session._led_at -= 11
        session._looked_at -= 1
        with pytest.raises(FencedError, match="does not lead any more"):
            session.on_step("learn")
