"""Writer, crash, recovery and readers as one state machine, against a list of what was acknowledged."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamd.errors import DiskError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Position, Progress, Schema, empty_batch
from streamd.schema import EdgeSet, Feature, NodeSet
from tests.builders import compact, feature_updates
from tests.faults import Crash, FaultyDisk

SCHEMA = Schema(1, 1, 1)
SEGMENT_EDGES = 6
CALLS = 40
"""More system calls than any one operation makes, so that some strikes fall between operations and some never fall."""


class LogMachine(RuleBasedStateMachine):
    """Every operation may be stopped at any system call; then a new writer takes over.

    commits[i]: what commit i added, as it was acknowledged, or nearly: the one in flight may stand or not.
    """

    schema = SCHEMA

    @initialize()
    def begin(self):
        self.path = Path(tempfile.mkdtemp(prefix="log-machine-"))
        self.commits, self.pending, self.dropped, self.nodes, self.log, self.disk = [], None, 0, 0, None, None
        self.schema = type(self).schema
        self.open()
        self.reader, self.seen = LogReader.open(self.path), 0

    def teardown(self):
        if self.log is not None:
            self.disk.abandon(self.log)
        shutil.rmtree(self.path, ignore_errors=True)

    def open(self, disk=None):
        self.disk = disk or FaultyDisk()
        self.log = LogWriter(self.path, self.schema, SEGMENT_EDGES, self.disk)
        done = self.log.progress.positions.get("t", {0: Position(0)})[0].offset
        if self.pending is not None:
            assert done in (len(self.commits), len(self.commits) + 1), "the commit in flight stands or does not"
            if done > len(self.commits):
                self.commits.append(self.pending)
            self.pending = None
        assert done == len(self.commits)
        self.nodes = self.log.num_nodes
        self.dropped = self.log.state.first_edge

    def survive(self, operation):
        try:
            operation()
        except Crash:
            self.disk.abandon(self.log)
            cut = self.disk.mode == "power"
            self.open()
            if cut:
                self.reader = LogReader.open(self.path)  # no reader outlives the power
        except DiskError:
            self.log.close()
            self.disk.at = -1
            self.open(self.disk)  # the page cache outlives the process

    @rule(edges=st.integers(0, 5), labels=st.integers(0, 2), delete=st.sampled_from(["", "", "node", "edge"]),
          late=st.booleans(), seed=st.integers(0, 2**20))
    def commit(self, edges, labels, delete, late, seed):
        rng = np.random.default_rng(seed)
        when = len(self.commits) * 10
        gone = {d[0] for c in self.commits for d in c["deletes"] if d[1] < 0}
        new = [f"k{self.nodes}", self.nodes + 1] if seed % 3 == 0 or not self.nodes else []
        alive = np.array([n for n in range(self.nodes + len(new)) if n not in gone and n not in self.reserved()])
        if not len(alive):
            return
        src, dst = rng.choice(alive, edges), rng.choice(alive, edges)
        one = rng.choice(alive, 1)
        deletions = np.zeros(int(bool(delete)), DELETION)
        everything = self.everything()
        if delete == "node":
            deletions["src"], deletions["dst"], deletions["edge"] = one, -1, edges
        elif delete == "edge" and everything:
            u, v, t, *_, number = everything[int(rng.integers(len(everything)))]
            deletions["src"], deletions["dst"], deletions["time"], deletions["edge"] = u, v, t, 0
            deletions["edge_set"] = number
        else:
            deletions = deletions[:0]
        value = rng.normal(size=(edges, 1)).astype(np.float32)
        sets = rng.integers(0, self.schema.num_edge_sets, edges)
        msg = np.concatenate([np.zeros((0, self.schema.edge_feature_dim), np.float32), *(
            self.row(n, float(v[0])) for n, v in zip(sets.tolist(), value, strict=True))])
        batch = dataclasses.replace(
            empty_batch(self.schema), src_E=src, dst_E=dst, time_E=np.full(edges, when), msg_ED=msg,
            label_node_L=rng.choice(alive, labels), label_time_L=np.full(labels, when),
            label_target_L=np.ones((labels, 1), np.float32), node_F=one, node_row_F=np.array([edges]),
            node_edge_F=np.array([edges]), node_values_F=self.node_row(seed), new_keys=tuple(new),
            late_edge=(0,) if late and edges else (), late_time=(when - 7,) if late and edges else (), deletions_X=deletions)
        times = [when - 7 if late and i == 0 else when for i in range(edges)]
        self.pending = {
            "edges": [(int(u), int(v), t, when, float(m[0]), int(n))
                      for u, v, t, m, n in zip(src, dst, times, value, sets, strict=True)],
            "keys": new, "feature": (int(one[0]), seed), "deletes": [tuple(int(d[n]) for n in ("src", "dst", "time", "edge_set")) for d in deletions]}
        progress = Progress("c", {"t": "id"}, {"t": {0: Position(len(self.commits) + 1)}})

        def run():
            self.log.commit(batch, progress, when)
            self.commits.append(self.pending)
            self.pending = None
            self.nodes = self.log.num_nodes

        self.survive(run)

    @rule()
    def cut_power(self):
        self.disk.cut_power()
        self.disk.abandon(self.log)
        self.open()
        self.reader = LogReader.open(self.path)

    @rule(at=st.integers(0, CALLS), mode=st.sampled_from(["kill", "torn", "power", "unsynced"]), seed=st.integers(0, 99))
    def plan_a_crash(self, at, mode, seed):
        self.disk.at, self.disk.mode = self.disk.calls + at, mode

    @rule()
    def stop_and_start(self):
        def run():
            self.log.close()
            self.open()

        self.survive(run)

    @rule()
    def seal(self):
        self.survive(self.log.seal)

    @rule(share=st.floats(0, 1))
    def compact(self, share):
        self.survive(lambda: compact(self.log, int(share * self.log.num_edges)))
        self.nodes = self.log.num_nodes

    @precondition(lambda self: len(self.log.state.segments) > 1)
    @rule(keep=st.integers(1, 3))
    def drop(self, keep):
        def run():
            self.log.drop_before(self.log.state.segments[-keep:][0].first_edge)
            self.dropped = self.log.state.first_edge

        self.survive(run)

    @rule()
    def tail(self):
        self.reader.refresh()
        if self.reader.superseded:
            assert self.reader.num_edges >= self.seen and not self.reader.refresh(), "it stays before the change"
            self.reader = LogReader.open(self.path)
        assert self.reader.num_edges >= self.seen, "a row that a reader saw is gone"
        self.seen = self.reader.num_edges
        self.agrees(self.reader)

    @rule()
    def read_anew_and_verify(self):
        self.agrees(LogReader.open(self.path))
        assert verify_log(self.path)[1] == []

    @invariant()
    def counts_add_up(self):
        if self.log is not None:
            assert self.log.num_edges == sum(len(c["edges"]) for c in self.commits)

    def row(self, number, value):
        """A row of edge features: the first of the set's is the value."""
        columns = self.schema.edge_columns(number)
        own = np.zeros((1, columns.stop - columns.start), np.float32)
        own[:, :1] = value
        return self.schema.edge_rows(number, own)

    def node_row(self, value):
        columns = self.schema.node_columns(0)
        own = np.zeros((1, columns.stop - columns.start), np.float32)
        own[:, :1] = value
        return self.schema.node_rows(0, own)

    def reserved(self):
        reader = LogReader.open(self.path)
        return {n for n, key in enumerate(reader.keys) if key is None}

    def everything(self):
        return [e for c in self.commits for e in c["edges"]]

    def agrees(self, reader):
        """The reader shows what was acknowledged, less what was deleted or dropped."""
        everything, hidden, at = self.everything(), set(), 0
        for c in self.commits:
            for u, v, t, n in c["deletes"]:
                before = at + (len(c["edges"]) if v < 0 else 0)
                hidden |= {i for i, e in enumerate(everything)
                           if (v < 0 and u in e[:2]) or (v >= 0 and i < before and e[:3] == (u, v, t) and e[5] == n)}
            at += len(c["edges"])
        first, end = reader.first_edge, reader.num_edges
        assert end == len(everything)
        src, dst, time = reader.edges(first, end)
        shown = np.flatnonzero(~reader.hidden(first, end)) + first
        assert shown.tolist() == [i for i in range(first, end) if i not in hidden]
        assert time.tolist() == [e[3] for e in everything[first:]]
        msg = reader.features_of(shown)
        for i, m in zip(shown.tolist(), msg, strict=True):
            value, number = everything[i][4:]
            want = self.row(number, value)
            assert (src[i - first], dst[i - first]) == everything[i][:2] and m.tolist() == want[0].tolist()
        assert reader.edge_sets_of(shown).tolist() == [everything[i][5] for i in shown]
        gone = {u for c in self.commits for u, v, *_ in c["deletes"] if v < 0}
        keys = [k for c in self.commits for k in c["keys"]]
        newest = dict(c["feature"] for c in self.commits)
        assert {n: list(v) for n, v in feature_updates(reader) if n not in gone} == {
            n: self.node_row(v)[0].tolist() for n, v in newest.items() if n not in gone}
        assert gone.isdisjoint(reader.ids.values()) and set(reader.ids) <= set(keys)
        assert len(reader.ids) >= len(keys) - len(gone)


class SetsMachine(LogMachine):
    """The same with a log of three edge sets."""

    schema = Schema.declared((NodeSet("n", 1),), [EdgeSet(n, "n", "n", 1) for n in "abc"], 1)


X, Y = Feature("x", 1, '{"type":"number"}'), Feature("y", 2, '{"vector":2}')


class GrowingMachine(LogMachine):
    """The same with a log that gets further sets and features while it lives, and may be stopped in the middle of that."""

    schema = SCHEMA
    stages = (
        SCHEMA,
        Schema.declared([NodeSet("default", 1, (X,))], [EdgeSet("default", feature_dim=1, features=(X,)), EdgeSet("b")], 1),
        Schema.declared([NodeSet("default", 3, (X, Y)), NodeSet("m")],
                        [EdgeSet("default", feature_dim=1, features=(X,)), EdgeSet("b"), EdgeSet("c", "m", "m", 2, (Y,))], 1),
        Schema.declared([NodeSet("default", 3, (X, Y)), NodeSet("m", 1, (X,))],
                        [EdgeSet("default", feature_dim=3, features=(X, Y)), EdgeSet("b"), EdgeSet("c", "m", "m", 2, (Y,))], 1))

    @precondition(lambda self: self.schema is not self.stages[-1])
    @rule(at=st.integers(0, 2 * CALLS), mode=st.sampled_from(["kill", "torn", "power", "unsynced"]))
    def extend(self, at, mode):
        self.survive(self.log.close)
        if not self.log.files.closed:
            self.log.close()
        self.schema = self.stages[self.stages.index(self.schema) + 1]
        self.log = None
        disk = FaultyDisk(at, mode)
        try:
            self.open(disk)
            disk.at = -1
        except (Crash, DiskError) as error:
            disk.abandon(self.log)
            self.open() if isinstance(error, Crash) else self.open(disk_after(disk))
            if mode == "power":
                self.reader, self.seen = LogReader.open(self.path), 0


def disk_after(disk):
    """The disk behind a page cache that outlives the process."""
    disk.at = -1
    return disk


TestLogMachine = LogMachine.TestCase
TestGrowingMachine = GrowingMachine.TestCase
TestSetsMachine = SetsMachine.TestCase
TestSetsMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, phases=(Phase.explicit, Phase.generate))
TestGrowingMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, phases=(Phase.explicit, Phase.generate))
TestLogMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, phases=(Phase.explicit, Phase.generate))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [LogMachine, SetsMachine, GrowingMachine])
def test_the_machine_for_a_long_time(machine):
    run_state_machine_as_test(machine, settings=settings(TestLogMachine.settings, max_examples=3000, stateful_step_count=60))
