"""What producers send, drawn by a seed: bursts of equal times, late events, deletes, node rows, records of one event or many, refused ones,
transactions."""

import io
import itertools
import json

import pyarrow as pa

from tests.simulator.broker import ABORTED, COMMITTED
from tests.simulator.records import (
    DELETE_EDGE,
    DELETE_NODE,
    EDGE,
    LABEL,
    NODE,
    REFUSED,
    SKIPPED,
    Item,
)
from tests.simulator.sets import (
    EDGE_SETS,
    SHOP,
    can_be_sold,
    own_fields,
    parts_of,
    shop_fields,
    target_of,
)

FORMATS = ("one", "one", "array", "ndjson", "arrow")
HEADERS = {"ndjson": [("content-type", b"application/x-ndjson")], "arrow": [("content-type", b"application/vnd.apache.arrow.stream")]}
PARTS = {"late": "_late", "bad": "_bad", "deletes": "_deletes", "nodes": "_nodes", "labels": "_labels", "transactions": "_uses_transactions"}
"""Parts of the traffic that a run may leave out."""
REMEMBERED = 200
"""Newest edges of which one may be deleted."""


class Producers:
    """Sends to the topics of a world. Owner: the world. Each call of `send` is a moment's traffic."""

    def __init__(self, world):
        self._world, self._random, self._ids, self._numbers = world, world.scheduler.stream("producers"), itertools.count(1), itertools.count()
        self._late, self._bad = self._random.choice([0.0, 0.02, 0.2]), self._random.choice([0.0, 0.02])
        self._deletes, self._nodes = self._random.choice([0.0, 0.01, 0.1]), self._random.choice([0.0, 0.05])
        self._labels = self._random.choice([0.01, 0.1]) if world.label_dim else 0.0
        self._pace = self._random.choice([0.05, 0.2, 1.0])
        self._rush = self._random.choice([1, 4, 30])
        self._uses_transactions = self._random.random() < 0.3
        for part in world.without & PARTS.keys():
            setattr(self, PARTS[part], 0)
        self._open, self._edges = None, []
        self._new = []
        """Keys of nodes of the first set that came before any edge of theirs."""
        self.is_on = True

    def be_steady(self):
        """Send as much at all times, of a bounded number of nodes."""
        self._late, self._bad, self._deletes, self._nodes, self._pace, self._rush = 0.02, 0.01, 0.02, 0.0, 0.1, 8
        self._uses_transactions, self._labels = False, 0.0

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
        names = [name for name in self._world.checks.topics if name in self._world.broker.topics]
        partitions = [p for name in names for p in self._world.broker.topics[name].partitions]
        if not partitions:
            return
        now_us = self._world.stamp(None) * 1000
        # Those of a burst are of one time.
        time_us = now_us if self._random.random() < 0.3 else None
        for _ in range(self._random.randint(1, self._rush)):
            partition = self._random.choice(partitions)
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
        is_shop = partition.topic.name == SHOP
        form = "array" if is_shop else self._random.choice(FORMATS)
        number = 1 if form == "one" else self._random.randint(1, 6)
        items = [self._edge(now_us, time_us) if form == "arrow" else self._item(now_us, time_us) for _ in range(number)]
        if is_shop:
            items = [item if can_be_sold(item) else item._replace(kind=SKIPPED) for item in items]
        shape = shop_fields if is_shop else own_fields if self._world.has_sets else _fields
        texts = [json.dumps(shape(item)) for item in items]
        if form == "arrow":
            value = _arrow(items, self._world.has_sets)
        elif form == "array":
            value = f"[{','.join(texts)}]".encode()
        else:
            value = "\n".join(texts).encode()
        transaction = self._open if self._random.random() < 0.5 else None
        partition.append(value, headers=HEADERS.get(form, ()), timestamp=now_us // 1000, transaction=transaction, told=items)

    def _item(self, now_us, time_us):
        drawn, number = self._random.random(), next(self._numbers)
        if drawn < self._bad:
            return Item(REFUSED, 0, number, "u", target_of(0, "i") if self._world.has_sets else "i", now_us)
        if drawn < self._bad + self._deletes and self._edges:
            named = self._random.choice(self._edges)
            if self._random.random() < 0.3:
                return Item(DELETE_NODE, 0, number, self._random.choice([named.key, named.target]))
            return named._replace(kind=DELETE_EDGE, id=0, number=number)
        if drawn < self._bad + self._deletes + self._nodes:
            return self._node(number)
        if drawn < self._bad + self._deletes + self._nodes + self._labels:
            return self._label(number, now_us)
        return self._edge(now_us, time_us)

    def _label(self, number, now_us):
        """A label of a node that has edges, or of one that has nothing else; late at times."""
        key = self._random.choice([f"u{self._random.randrange(12)}", f"l{self._random.randrange(40)}"])
        since_us = 600_000_000 if self._random.random() < self._late else 300_000
        return Item(LABEL, next(self._ids), number, key, "", now_us - self._random.randint(0, since_us) // 1000 * 1000)

    def _node(self, number):
        """Features of a node that has edges, or of a new one, of which edges may follow."""
        if self._world.has_sets and self._random.random() < 0.5:
            return Item(NODE, next(self._ids), number, target_of(0, f"i{self._random.randrange(20)}"))
        new = f"n{number}"
        self._new = [*self._new[-REMEMBERED:], new]
        return Item(NODE, next(self._ids), number, self._random.choice([f"u{self._random.randrange(12)}", new]))

    def _edge(self, now_us, time_us):
        when = time_us or now_us - self._random.randint(0, 300) * 1000
        if self._random.random() < self._late:
            when = now_us - self._random.randint(1, 600_000) * 1000
        edge_set = self._random.randrange(self._world.num_sets) if self._world.has_sets else 0
        target = f"u{self._random.randrange(12)}" if edge_set == 1 else f"i{self._random.randrange(20)}"
        source = self._random.choice(self._new) if self._new and self._random.random() < 0.05 else f"u{self._random.randrange(12)}"
        if self._world.has_sets:
            target = target_of(edge_set, target)
        item = Item(EDGE, next(self._ids), next(self._numbers), source, target, when, edge_set)
        self._edges = [*self._edges[-REMEMBERED:], item]
        return item


def _fields(item):
    time = item.time_us // 1000
    return {
        EDGE: {"src": item.key, "dst": item.target, "time": time, "features": [item.id]},
        REFUSED: {"src": item.key, "dst": item.target, "time": time, "features": ["wrong"]},
        NODE: {"type": "node", "id": item.key, "features": [item.id]},
        LABEL: {"type": "label", "node": item.key, "time": time, "target": [item.id]},
        DELETE_NODE: {"type": "delete", "node": item.key},
        DELETE_EDGE: {"type": "delete", "src": item.key, "dst": item.target, "time": time},
    }[item.kind]


def _arrow(items, has_sets):
    named = {"edge_set": [EDGE_SETS[i.edge_set] for i in items]} if has_sets else {}
    table = pa.table({**named, "src": [parts_of(i.key)[1] for i in items], "dst": [parts_of(i.target)[1] for i in items],
                      "time": [i.time_us // 1000 for i in items], "features": pa.array([[float(i.id)] for i in items], pa.list_(pa.float32()))})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()
