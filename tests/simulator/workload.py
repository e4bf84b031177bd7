"""What producers send, drawn by a seed: bursts of equal times, late events, records of one event or many, refused ones, transactions."""

import itertools
import json
from typing import NamedTuple

from tests.simulator.broker import ABORTED, COMMITTED

FORMATS = ("one", "array", "ndjson")
NDJSON = [("content-type", b"application/x-ndjson")]


class Item(NamedTuple):
    """An event as it was sent. id: its only feature, by which the log is compared; 0 of one that must be refused."""

    id: int
    source: str
    target: str
    time_us: int


class Producers:
    """Sends to the topics of a world. Owner: the world. Each call of `send` is a moment's traffic."""

    def __init__(self, world):
        self._world, self._random, self._ids = world, world.scheduler.random, itertools.count(1)
        self._late, self._bad = self._random.choice([0.0, 0.02, 0.2]), self._random.choice([0.0, 0.02])
        self._pace = self._random.choice([0.05, 0.2, 1.0])
        self._rush = self._random.choice([1, 4, 30])
        self._uses_transactions = self._random.random() < 0.3
        self._open = None
        self.num_sent, self.is_on = 0, True

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
        topic = self._world.broker.topics["events"]
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
        items = [self._item(now_us, time_us) for _ in range(1 if form == "one" else self._random.randint(1, 6))]
        texts = [_text(item) for item in items]
        if form == "one":
            value, headers = texts[0], ()
        elif form == "array":
            value, headers = f"[{','.join(texts)}]", ()
        else:
            value, headers = "\n".join(texts), NDJSON
        transaction = self._open if self._random.random() < 0.5 else None
        partition.append(value.encode(), headers=headers, timestamp=now_us // 1000, transaction=transaction, told=items)
        self.num_sent += len(items)

    def _item(self, now_us, time_us):
        if self._random.random() < self._bad:
            return Item(0, "u", "i", now_us)
        when = time_us or now_us - self._random.randint(0, 300) * 1000
        if self._random.random() < self._late:
            when = now_us - self._random.randint(1, 600_000) * 1000
        return Item(next(self._ids), f"u{self._random.randrange(12)}", f"i{self._random.randrange(20)}", when)


def _text(item):
    fields = {"src": item.source, "dst": item.target, "time": item.time_us // 1000, "features": [item.id or "wrong"]}
    return json.dumps(fields)
