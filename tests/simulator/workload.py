"""What producers send, drawn by a seed: bursts of equal times, late events, deletes, node rows, records of one event or many, refused ones,
transactions."""

import io
import itertools
import json

import pyarrow as pa

from tests.simulator.broker import ABORTED, COMMITTED
from tests.simulator.records import DELETE_EDGE, DELETE_NODE, EDGE, NODE, REFUSED, Item

FORMATS = ("one", "one", "array", "ndjson", "arrow")
HEADERS = {"ndjson": [("content-type", b"application/x-ndjson")], "arrow": [("content-type", b"application/vnd.apache.arrow.stream")]}
REMEMBERED = 200
"""Newest edges of which one may be deleted."""


class Producers:
    """Sends to the topics of a world. Owner: the world. Each call of `send` is a moment's traffic."""

    def __init__(self, world):
        self._world, self._random, self._ids, self._numbers = world, world.scheduler.random, itertools.count(1), itertools.count()
        self._late, self._bad = self._random.choice([0.0, 0.02, 0.2]), self._random.choice([0.0, 0.02])
        self._deletes, self._nodes = self._random.choice([0.0, 0.01, 0.1]), self._random.choice([0.0, 0.05])
        self._pace = self._random.choice([0.05, 0.2, 1.0])
        self._rush = self._random.choice([1, 4, 30])
        self._uses_transactions = self._random.random() < 0.3
        self._open, self._edges = None, []
        self.is_on = True

    def be_steady(self):
        """Send as much at all times, of a bounded number of nodes."""
        self._late, self._bad, self._deletes, self._nodes, self._pace, self._rush = 0.02, 0.01, 0.02, 0.0, 0.1, 8
        self._uses_transactions = False

    def begin(self):
        self._world.scheduler.at(self._random.expovariate(1 / self._pace), self._turn)

    def end(self):
        """Send nothing more, and end what is open."""
        self.is_on = False
        self._finish()

    def _turn(self):
        if self.is_on:
            self.send()
            self.begin()

    def send(self):
        """Some records to some partitions, at this moment."""
        if self._uses_transactions and self._random.random() < 0.1:
            self._finish() if self._open is not None else self._start()
        topic = self._world.broker.topics.get("events")
        if topic is None:
            return
        now_us = self._world.stamp(None) * 1000
        # Those of a burst are of one time.
        time_us = now_us if self._random.random() < 0.3 else None
        for _ in range(self._random.randint(1, self._rush)):
            partition = self._random.choice(topic.partitions)
            if partition.has_leader and self._world.broker.is_up:
                self._record(partition, now_us, time_us)

    def _start(self):
        self._open = self._world.broker.begin()
        self._world.scheduler.at(self._random.uniform(0.1, 20), self._finish)

    def _finish(self):
        if self._open is not None:
            self._world.broker.finish(self._open, self._random.choice([ABORTED, COMMITTED, COMMITTED]))
            self._open = None

    def _record(self, partition, now_us, time_us):
        form = self._random.choice(FORMATS)
        number = 1 if form == "one" else self._random.randint(1, 6)
        items = [self._edge(now_us, time_us) if form == "arrow" else self._item(now_us, time_us) for _ in range(number)]
        texts = [json.dumps(_fields(item)) for item in items]
        if form == "arrow":
            value = _arrow(items)
        elif form == "array":
            value = f"[{','.join(texts)}]".encode()
        else:
            value = "\n".join(texts).encode()
        transaction = self._open if self._random.random() < 0.5 else None
        partition.append(value, headers=HEADERS.get(form, ()), timestamp=now_us // 1000, transaction=transaction, told=items)

    def _item(self, now_us, time_us):
        drawn, number = self._random.random(), next(self._numbers)
        if drawn < self._bad:
            return Item(REFUSED, 0, number, "u", "i", now_us)
        if drawn < self._bad + self._deletes and self._edges:
            named = self._random.choice(self._edges)
            if self._random.random() < 0.3:
                return Item(DELETE_NODE, 0, number, self._random.choice([named.key, named.target]))
            return Item(DELETE_EDGE, 0, number, named.key, named.target, named.time_us)
        if drawn < self._bad + self._deletes + self._nodes:
            return Item(NODE, next(self._ids), number, self._random.choice([f"u{self._random.randrange(12)}", f"n{number}"]))
        return self._edge(now_us, time_us)

    def _edge(self, now_us, time_us):
        when = time_us or now_us - self._random.randint(0, 300) * 1000
        if self._random.random() < self._late:
            when = now_us - self._random.randint(1, 600_000) * 1000
        item = Item(EDGE, next(self._ids), next(self._numbers), f"u{self._random.randrange(12)}", f"i{self._random.randrange(20)}", when)
        self._edges = [*self._edges[-REMEMBERED:], item]
        return item


def _fields(item):
    time = item.time_us // 1000
    return {
        EDGE: {"src": item.key, "dst": item.target, "time": time, "features": [item.id]},
        REFUSED: {"src": item.key, "dst": item.target, "time": time, "features": ["wrong"]},
        NODE: {"type": "node", "id": item.key, "features": [item.id]},
        DELETE_NODE: {"type": "delete", "node": item.key},
        DELETE_EDGE: {"type": "delete", "src": item.key, "dst": item.target, "time": time},
    }[item.kind]


def _arrow(items):
    table = pa.table({"src": [i.key for i in items], "dst": [i.target for i in items], "time": [i.time_us // 1000 for i in items],
                      "features": pa.array([[float(i.id)] for i in items], pa.list_(pa.float32()))})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()
