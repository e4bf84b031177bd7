"""State that is stored as several files is taken over whole or not at all, whichever of them is gone or damaged."""

import hashlib

import numpy as np
import pytest

from streamd.clock import SystemClock
from streamd.errors import CorruptionError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.live import load_stored_facts, save_facts
from streamd.models.memory.files import MemoryReader
from streamd.registry import Registry
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.memory_store import MemoryStore
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.checkpoint import load_checkpoint, read_cursor
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.trainer import Trainer
from streamd.training.versions.nightly import Nightly
from tests.builders import HOUR, SETS, learning, sets_stream, settings, write_sets_log

EDGES = 300


def remove(path):
    path.unlink()


def flip(path):
    """A bit of the rows; of a file of names the one by which it is no JSON any more."""
    data = bytearray(path.read_bytes())
    data[0 if path.suffix == ".json" else -5] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def digest(arrays):
    """A hash of arrays or tensors by name."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(name.encode() + np.asarray(array).tobytes())
    return found.hexdigest()


class World:
    """A log of three edge sets over two nights that a trainer learned, with all it stores."""

    def __init__(self, path):
        write_sets_log(path, *sets_stream(EDGES, hours=60), watermark=100 * HOUR, segment_edges=100)
        self.path = path
        self.settings = settings(
            path, stream__edge_feature_dim=SETS.edge_feature_dim, stream__node_feature_dim=SETS.node_feature_dim,
            windows__width_seconds=12 * 3600, model__dim=16, training__epochs=1, training__nightly_twin=True, bootstrap__max_events=0)
        self.log = LogReader.open(path)
        self.registry = Registry.of(self.settings)
        trainer = Trainer(self.settings, Paths.of(self.settings, "train"), "cpu", self.log, self.registry, SystemClock(), Heartbeat(path, "train"))
        while due := trainer.due():
            trainer.process(due[0])

        # Facts and memory as a server stores them, memory in a file of all rows and one of changes.
        save_facts(trainer.recorder.live.facts, path / "facts")
        store, memory = MemoryStore(path / "serve"), self.served().memory
        store.store(self.registry.champion(), memory)
        memory.rows.write(np.array([3]), np.ones((1, 16), np.float32), np.ones(1, np.int64))
        memory.edge += 1
        store.store(self.registry.champion(), memory)
        self.nightly = trainer.nightly.name
        self.older = self.registry.names()[-2]

    def learner(self):
        return Learner(learning(self.settings), self.log, ReplayStore(self.path / "train/replay", 100, 0))

    def facts(self, max_pairs=1000):
        return SetFacts(SETS, self.settings.model.half_lives_seconds, max_pairs, 0, self.log.node_sets_of)

    def served(self, memories=None):
        version = self.registry.load(self.registry.champion())
        return LoadedVersion.restored(version, self.log.state.schema, memories=memories)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


class Facts:
    """The facts of all sets, and of each."""

    def files(self, world):
        return sorted((world.path / "facts").iterdir())

    def taken(self, world, max_pairs=1000):
        facts = world.facts(max_pairs)
        is_taken = load_stored_facts(facts, world.path / "facts", EDGES)
        return is_taken, digest({f"{n}.{k}": v for n, one in enumerate((facts.all, *facts.per_set)) for k, v in one.tensors().items()})


class Checkpoint:
    """The trainer's: weights, optimizer, statistics and tail, memory, and what names them."""

    def files(self, world):
        return sorted(next((world.path / "train/checkpoints").iterdir()).iterdir())

    def taken(self, world):
        learner, folder = world.learner(), world.path / "train/checkpoints"
        try:
            load_checkpoint(folder, read_cursor(folder), learner, world.log.state).restore(learner)
            is_taken = True
        except CorruptionError:
            is_taken = False
        optimizer = {f"{n}.{k}": v for n, state in learner.optimizer.state_dict()["state"].items() for k, v in state.items()}
        tail = {f"tail.{n}.{k}": v for n, chunk in enumerate(learner.tail) for k, v in chunk.tensors().items()}
        rest = {"rest": [learner.num_learned, learner.replay.num_offered, learner.memory.edge]}
        return is_taken, digest({**learner.model.state_dict(), **optimizer, **learner.memory.tensors(), **tail, **rest})


class NightlyState:
    """The model of the last midnight, its memory and its facts."""

    def files(self, world):
        return sorted((world.path / "train/nightly" / world.nightly).iterdir())

    def taken(self, world):
        learner = world.learner()
        recorder = Recorder(learning(world.settings), world.log)
        nightly = Nightly(learning(world.settings), world.log, learner, recorder, world.path / "train", lambda _: ())
        nightly.restore(world.nightly)
        return bool(nightly.name), digest({**learner.model.state_dict(), **learner.memory.tensors()})


class ServedVersion:
    """A version of the registry, after which another one is read by what it has more."""

    def files(self, world):
        return sorted((world.registry.folder / world.registry.champion()).iterdir())

    def taken(self, world):
        memories = MemoryReader()
        try:
            world.served(memories)
            is_taken = True
        except VersionError:
            is_taken = False
        older = world.registry.load(world.older)
        return is_taken, digest(LoadedVersion.restored(older, SETS, memories=memories).memory.tensors())


class ServerMemory:
    """The memory of the version that serves, as the server stored it, and the file that names its files."""

    def files(self, world):
        return sorted((world.path / "serve/memory").iterdir())

    def taken(self, world):
        served = world.served()
        before = served.memory.edge
        served.take_memory(MemoryStore(world.path / "serve"), before + 1)
        return served.memory.edge > before, digest(served.memory.tensors())


STATES = (Facts, Checkpoint, NightlyState, ServedVersion, ServerMemory)


@pytest.mark.parametrize("damage", [remove, flip, cut])
@pytest.mark.parametrize("state", STATES)
def test_where_any_file_of_a_state_is_gone_or_damaged_none_of_it_is_taken_over(world, state, damage):
    parts = state()
    files = parts.files(world)
    whole_is_taken, _ = parts.taken(world)
    assert whole_is_taken and len(files) > 2, "the whole is taken over"
    left = set()
    for path in files:
        content = path.read_bytes()
        damage(path)
        try:
            is_taken, found = parts.taken(world)
        finally:
            path.write_bytes(content)
        assert not is_taken, f"without {path.name}"
        left.add(found)
    assert len(left) == 1, "whichever file it is, what is left is the same"
    assert parts.taken(world)[0]


def test_facts_of_which_one_set_does_not_fit_are_not_taken_over_for_the_others(world):
    stored = world.facts()
    assert load_stored_facts(stored, world.path / "facts", EDGES)
    sizes = sorted({one.num_pairs for one in (stored.all, *stored.per_set)})
    assert len(sizes) >= 3
    blank = {k: v for one in (world.facts().all,) for k, v in one.tensors().items()}
    for size in sizes:
        lowered = world.facts(size - 1)
        assert not load_stored_facts(lowered, world.path / "facts", EDGES)
        assert lowered.num_pairs == 0 and digest(lowered.all.tensors()) == digest(blank)
        src, dst, time = world.log.edges(0, EDGES)
        lowered.advance(src, dst, time, world.log.edge_sets(0, EDGES))
        assert [one.edge for one in lowered.per_set] == [one.edge for one in stored.per_set], "each event is counted once"
