"""Deletes reach each follower of a log, which its owner registers once: nothing else passes them on.

    log --refresh--> graph, labels, embeddings, replay, outbox: none shows a deleted event
"""

import ast
import dataclasses
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph import BlockGraph, Draw
from streamd.graph.label_history import LabelHistory
from streamd.graph.live import LiveGraph, read_back
from streamd.models import build_model
from streamd.models.inference.torch_model import TorchModel
from streamd.scoring.alarms import Alarms
from streamd.scoring.outbox import Outbox
from streamd.serving.loaded_version import LoadedVersion
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import Window
from tests.builders import HOUR, batch, learning, stream
from tests.builders import settings as settings_of

NODES, EVENTS = 35, 240
SCHEMA = Schema(1, 0, 1)
FOLLOWERS = {"LiveGraph", "LabelHistory", "LoadedVersion", "Learner", "Outbox", "Alarms"}
"""Each class of streamd with a method `apply(changes)`; `World.shows` reads out every one of them."""


class World:
    """A log that grows, and one of each follower, none of which is passed a delete."""

    def __init__(self, path):
        self.src, self.dst, self.time = stream(EVENTS)
        self.writer = LogWriter(path, SCHEMA, 100)
        self.at, self.gone_nodes, self.gone_events, self.changed = 0, set(), set(), False
        self.grow(90)
        self.log = LogReader.open(path)
        own = settings_of(path, stream__edge_feature_dim=1, stream__label_dim=1, model__name="tgat")

        # Two graphs, of which one finds the events of a deleted node in the log.
        self.graphs = {d: LiveGraph(self.log, BlockGraph(0, 8, (d,), read_back(self.log)), own.model) for d in ("both", "out")}
        self.labels = LabelHistory(self.log)
        self.recorder, self.learner = Recorder(learning(own), self.log), Learner(learning(own), self.log, ReplayStore(None, 10, 0))
        model = build_model(own.model, SCHEMA, 0)
        self.version = LoadedVersion(SimpleNamespace(window_seconds=3600, window_end_us=0), TorchModel(model), model.new_memory())
        self.outbox = Outbox(lambda: None, lambda at: None, lambda reason, number: None)
        self.alarms = Alarms(path, own.server)
        for follower in (self.version, self.outbox, self.alarms):
            self.log.follow(follower)

    def grow(self, count):
        end = min(self.at + count, EVENTS)
        src, dst, time = (column[self.at:end].copy() for column in (self.src, self.dst, self.time))
        for column, other in ((src, 19), (dst, 34)):
            column[np.isin(column, list(self.gone_nodes))] = other
        self.src[self.at:end], self.dst[self.at:end] = src, dst
        keys = [f"n:{i}" for i in range(NODES)] if self.at == 0 else ()
        self.writer.keys.update({key: i for i, key in enumerate(keys)})
        rows = batch(SCHEMA, src, dst, time, keys)
        if self.at == 0:
            rows = dataclasses.replace(rows, label_node_L=np.arange(NODES), label_time_L=np.full(NODES, time[0]),
                                       label_target_L=np.arange(NODES, dtype=np.float32)[:, None] + 1)
        self.writer.commit(rows, Progress(), int(time[-1]) if end > self.at else self.writer.watermark)
        self.at = end

    def delete(self, src, dst=-1, time=-1):
        row = np.zeros(1, DELETION)
        row["src"], row["dst"], row["time"] = src, dst, time
        self.writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=row), Progress(), self.writer.watermark)
        if dst < 0:
            self.gone_nodes.add(src)
        named = (self.src == src) & ((self.dst == dst) & (self.time == time) if dst >= 0 else True)
        named |= (self.dst == src) & (dst < 0)
        self.gone_events |= set(np.flatnonzero(named[:self.at]).tolist())

    def use(self):
        """Let each follower keep something of all events, as its role does."""
        alive = [n for n in range(NODES) if n not in self.gone_nodes]
        for live in self.graphs.values():
            live.insert(self.at)
        self.labels.means(np.arange(NODES), np.zeros(NODES, np.int64), 100 * HOUR)
        self.version.embed(np.array(alive), self.graphs["both"])
        events = [e for e in range(self.at) if e not in self.gone_events]
        self.outbox.set_aside()
        self.outbox.add([SimpleNamespace(record=SimpleNamespace(event=e), src=int(self.src[e]), dst=int(self.dst[e])) for e in events],
                        [0.0] * len(events))
        for e in events:
            self.alarms._rarity.rate(e, "default", int(self.src[e]), 0.5, (0.5, 0.5))
            self.alarms._begin_quiet(int(self.src[e]), e, int(self.time[e]))
        if self.recorder.edge < self.at:
            window = Window(int(self.time[0]), int(self.time[self.at - 1]) + 1, self.recorder.edge, self.at)
            for chunk in self.recorder.chunks(window):
                self.learner.score(chunk)
            self.learner.learn(window.first_edge)
            self.learner.begin()

    def shows(self):
        """The deleted events and nodes that any follower still shows, by its name."""
        found, gone = {}, np.array(sorted(self.gone_nodes), np.int64)
        for direction, live in self.graphs.items():
            got = live.graph.sample(np.arange(NODES), 0, self.at, Draw(fanout=EVENTS, direction=direction))
            found[f"graph, {direction}"] = self.gone_events & set(got.event[got.mask].tolist())
        found["labels"] = {node for node in self.gone_nodes if self.labels.means(np.array([node]), np.zeros(1, np.int64), 100 * HOUR)[0, 0] == node + 1}
        found["embeddings"] = self.version._embeddings.has(np.arange(NODES)).sum() if self.changed else 0
        found["outbox"] = self.gone_events & {one.scored.record.event for one in self.outbox._waiting}
        found["alarms"] = self.gone_nodes & {*self.alarms._last, *self.alarms._rarity._sources}
        found["replay"] = sum(self._shown_by(chunk, gone) for chunk in [*self.learner.replay.chunks, *self.learner.tail])
        return {name: what for name, what in found.items() if what}

    def _shown_by(self, chunk, gone):
        """How many deleted events and nodes a replayed chunk still shows."""
        x = chunk.inputs
        gone_M = torch.isin(x.node_M, torch.from_numpy(gone))
        events = torch.tensor(sorted(self.gone_events), dtype=torch.int64)
        shown = (x.weight_E > 0) & torch.isin(x.event_E, events)
        around = [hop.mask_UK & (gone_M[hop.neighbor_UK] | torch.isin(hop.eid_UK, events)) for hop in x.hops]
        return sum(int(part.sum()) for part in (shown, *around))


STEPS = st.lists(st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 60)), st.tuples(st.just("node"), st.integers(0, 14)), st.tuples(st.just("edge"), st.integers(0, 80)),
    st.tuples(st.just("use"), st.just(0))), min_size=1, max_size=6)


@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_no_follower_shows_a_deleted_event_after_any_events_and_deletes(steps):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.use()
        for what, number in [*steps, ("edge", 5), ("node", 3)]:
            if what == "grow":
                world.grow(number)
            elif what == "node":
                world.delete(number)
            elif what == "edge":
                world.delete(*(int(column[number]) for column in (world.src, world.dst, world.time)))
            else:
                world.use()
            world.changed = world.log.refresh().has_deletes
            assert world.shows() == {}, "only the log was refreshed"
        world.writer.close()


def test_a_new_follower_gets_all_deletes_so_far_and_then_those_of_each_refresh(tmp_path):
    class Seen:
        """A follower that nobody passes anything to."""

        def __init__(self):
            self.nodes, self.events, self.calls = [], [], 0

        def apply(self, changes):
            self.nodes += changes.nodes.tolist()
            self.events += changes.events.tolist()
            self.calls += 1

    world = World(tmp_path)
    world.delete(3)
    world.log.refresh()
    early = Seen()
    world.log.follow(early)
    assert early.nodes == [3] and early.calls == 1
    world.delete(4)
    assert world.log.read() and early.nodes == [3], "read, and not applied yet"
    late = Seen()
    world.log.follow(late)
    assert early.nodes == late.nodes == [3, 4]
    world.delete(*(int(column[7]) for column in (world.src, world.dst, world.time)))
    assert world.log.refresh() and 7 in early.events and early.events == late.events
    assert not world.log.refresh() and late.calls == 2, "nothing was committed"
    before = early.calls
    del late
    world.delete(5)
    world.log.refresh()
    assert early.calls == before + 1 and len([one for one in world.log._followers if type(one()) is Seen]) == 1, "the dropped one is forgotten"
    world.writer.close()


def test_each_follower_of_streamd_is_read_out_here():
    """A class that gets a method `apply(changes)` comes into `World`, or this fails."""
    found = set()
    for path in Path("streamd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name != "LogSubscriber":
                methods = (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "apply")
                if any(m.args.args[-1].arg == "changes" for m in methods):
                    found.add(node.name)
    assert found == FOLLOWERS | {"TrialLoop"}, "tests/trials/test_joining.py reads out the state of a trial, which needs a topic"
