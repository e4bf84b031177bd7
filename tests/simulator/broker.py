"""Kafka in memory, as far as streamd and its users see it: topics, partitions, leader epochs, transactions, idempotent producers."""

import itertools
from dataclasses import dataclass, field

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass
class Entry:
    """A record, or the mark that ends a transaction. told: what the checks know of it."""

    offset: int
    epoch: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list
    transaction: "Transaction | None" = None
    is_mark: bool = False
    told: object = None


@dataclass
class Transaction:
    """Of a producer, over any partitions. first: partition -> its first offset there."""

    state: str = OPEN
    first: dict = field(default_factory=dict)


class Partition:
    """A log with a leader. entries: of the offsets from `start` on. epochs: (epoch, first offset) of each leader."""

    def __init__(self, topic, number):
        self.topic, self.number = topic, number
        self.entries, self.start, self.epoch, self.has_leader = [], 0, 0, True
        self.history = []
        """All entries there ever were, by offset."""
        self.epochs = [(0, 0)]
        self.stored = {}
        """Producer -> its number -> the offset, as idempotence keeps them."""

    @property
    def end(self):
        return self.start + len(self.entries)

    @property
    def stable(self):
        """The last stable offset."""
        return min((t.first[self] for t in self.topic.broker.transactions if self in t.first), default=self.end)

    def append(self, value, *, key=None, headers=(), timestamp=0, transaction=None, is_mark=False, told=None):
        """Store a record. Returns: its offset."""
        entry = Entry(self.end, self.epoch, timestamp, key, value, list(headers), transaction, is_mark, told)
        if transaction is not None and not is_mark:
            transaction.first.setdefault(self, entry.offset)
        self.entries.append(entry)
        self.history.append(entry)
        self.topic.broker.scheduler.wake(self.topic.broker.waiters)
        return entry.offset

    def read(self, offset, most):
        """Entries from an offset up to what is stable."""
        first = offset - self.start
        return self.entries[first: min(first + most, self.stable - self.start)]

    def elect(self):
        """Another broker leads, which has all that this one had."""
        self.has_leader = True
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))

    def trim(self, offset):
        """Delete all before an offset."""
        del self.entries[: offset - self.start]
        self.start = offset

    def end_of_epoch(self, epoch):
        """Where the log of a leader epoch ends, None where this broker does not know the epoch."""
        known = [e for e, _ in self.epochs if e <= epoch]
        if not known:
            return None
        later = [first for e, first in self.epochs if e > epoch]
        return min(later) if later else self.end


class Topic:
    def __init__(self, broker, name, topic_id, num_partitions, configs=()):
        self.broker, self.name, self.id, self.configs = broker, name, topic_id, dict(configs)
        self.partitions = [Partition(self, n) for n in range(num_partitions)]

    def grow(self):
        self.partitions.append(Partition(self, len(self.partitions)))


class Broker:
    """The cluster, as one. is_up: whether it answers anybody. cut: machines that do not reach it; deaf: machines whose requests come,
    and that hear no answer."""

    def __init__(self, scheduler, num_brokers=3):
        self.scheduler, self.num_brokers = scheduler, num_brokers
        self.topics, self.transactions, self.waiters = {}, [], []
        self.by_id = {}
        """All topics that there ever were."""
        self.is_up, self.cut, self.deaf = True, set(), set()
        self.offsets = {}
        self.message_bytes = 1_048_588
        """Largest record that it takes."""
        self._producers = itertools.count(1)
        self._ids = itertools.count(1)

    def create(self, name, num_partitions, configs=()):
        topic = Topic(self, name, f"topic-{next(self._ids)}", num_partitions, configs)
        self.topics[name] = self.by_id[topic.id] = topic
        self.scheduler.wake(self.waiters)
        return topic

    def remove(self, name):
        """Delete a topic with all its records."""
        for partition in self.topics.pop(name).partitions:
            for transaction in self.transactions:
                transaction.first.pop(partition, None)
            partition.trim(partition.end)

    def find(self, partition):
        """The partition of a TopicPartition, None where there is none."""
        topic = self.topics.get(partition.topic)
        return topic.partitions[partition.partition] if topic is not None and partition.partition < len(topic.partitions) else None

    def reaches(self, machine):
        return self.is_up and machine.name not in self.cut

    def answers(self, machine):
        return self.reaches(machine) and machine.name not in self.deaf

    def new_producer(self):
        return next(self._producers)

    def begin(self):
        transaction = Transaction()
        self.transactions.append(transaction)
        return transaction

    def finish(self, transaction, state):
        """End a transaction by a mark in each of its partitions."""
        transaction.state = state
        self.transactions.remove(transaction)
        for partition in transaction.first:
            partition.append(None, transaction=transaction, is_mark=True)
