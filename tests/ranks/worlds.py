"""A log of several kinds of nodes and edges with features, labels and deletes, and trainers that learn it together."""

import dataclasses
import threading

import numpy as np

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, SetKey, empty_batch
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training import learner as learners
from streamd.training.trainer import Trainer
from tests.builders import HOUR, SETS, declared, sets_rows, sets_stream, settings
from tests.ranks.threads import run

USERS, EDGES = 20, 900
GONE = 3
"""A user that is deleted after two thirds of the events, and seen no more."""
BEFORE, AFTER = 600, 900
_BUILD = threading.Lock()


def one_at_a_time(monkeypatch):
    """Threads share the seed of torch, from which weights are drawn: one draws at a time."""
    build = learners.build_model

    def locked(*args, **named):
        with _BUILD:
            return build(*args, **named)

    monkeypatch.setattr(learners, "build_model", locked)


class World:
    """A log that grows."""

    def __init__(self, path, **values):
        self.path = path
        # Few events in a chunk, and fewer than ranks in some: every rank must go along with an empty share.
        small = {"model__memory_chunk": 50, "model__labels": "classification", "training__epochs": 2, "registry__gate_events": 300}
        self.settings = settings(path, **{k.replace(".", "__"): v for k, v in declared().items()}, **{**small, **values})
        self.src, self.dst, self.time, self.sets = sets_stream(EDGES)
        self.src[BEFORE:][self.src[BEFORE:] == GONE] = 4
        self.dst[BEFORE:][self.dst[BEFORE:] == GONE] = 5
        # An hour of two events.
        hour = self.time // HOUR
        few = np.flatnonzero(hour == 2)[2:]
        kept = np.setdiff1d(np.arange(EDGES), few)
        self.num_kept_before = int((kept < BEFORE).sum())
        self.src, self.dst, self.time, self.sets = (x[kept] for x in (self.src, self.dst, self.time, self.sets))
        self.writer = LogWriter(path, SETS, 250)
        self.at = 0

    def grow(self, until=None):
        """Append events, with a label for every ninth and new features for every fifth of the nodes that are named."""
        until = len(self.src) if until is None else until
        msg = sets_rows(self.sets)
        while self.at < until:
            end = min(self.at + min(90, self.writer.remaining_rows()), until)
            part = slice(self.at, end)
            src, dst = self.src[part], self.dst[part]
            keys = ()
            if self.at == 0:
                keys = tuple(i if i < USERS else SetKey(1, i - USERS) for i in range(int(max(self.src.max(), self.dst.max())) + 1))
                self.writer.keys.update({key: i for i, key in enumerate(keys)})
            node = src[::5]
            values = SETS.node_rows(0, np.stack([node % 3, node % 2], 1).astype(np.float32) + self.at / 100)
            rows = dataclasses.replace(
                empty_batch(SETS), src_E=src, dst_E=dst, time_E=self.time[part], msg_ED=msg[part], new_keys=keys,
                label_node_L=src[::9], label_time_L=self.time[part][::9], label_target_L=(src[::9, None] % 2).astype(np.float32),
                node_F=node, node_row_F=np.arange(len(node)), node_edge_F=np.arange(0, len(src), 5)[:len(node)], node_values_F=values)
            last = end == len(self.src)
            self.writer.commit(rows, Progress(), 100 * HOUR if last else int(self.time[end - 1]))
            self.at = end
        return self

    def delete(self):
        """Delete a node and an edge."""
        rows = np.zeros(2, DELETION)
        rows["src"], rows["dst"], rows["time"] = (GONE, self.src[40]), (-1, self.dst[40]), (-1, self.time[40])
        rows["edge_set"] = 0, self.sets[40]
        rows["row"] = 0, 1
        self.writer.keys.pop(GONE, None)
        self.writer.commit(dataclasses.replace(empty_batch(SETS), deletions_X=rows), Progress(), self.writer.watermark)
        return self

    def learn(self, size, work=lambda trainer: None, shards=0, logs=(), between=()):
        """Learn all closed windows with so many ranks, replicas of so many shards. logs: directories of the same log that the
        ranks read in turn, as on several machines. between: what to do, one after the other, where the trainers wait for more
        windows. Returns: what each made of its trainer at the end."""
        def one(ranks):
            log = LogReader.open(logs[ranks.rank % len(logs)] if logs else self.path, keep_keys=False)
            trainer = Trainer(self.settings, Paths(log.data_dir, self.path, "train"), "cpu", log, Registry.of(self.settings), SystemClock(),
                              Heartbeat(self.path, "train", f"train-{ranks.rank}" if ranks.rank else "train"), ranks=ranks)
            # The first rank stops all.
            trainer.run(StopWhereNothingIsLeft(between if ranks.is_first else ()))
            return work(trainer)

        return run(size, one, shards=shards)


class StopWhereNothingIsLeft(threading.Event):
    """Where `Trainer.run` waits for more windows: does one thing more, or ends it."""

    def __init__(self, between):
        super().__init__()
        self._left = list(between)

    def wait(self, timeout=None):
        if self._left:
            self._left.pop(0)()
        else:
            self.set()
        return True
