"""kafka-python's consumer, producer and admin client on the broker in memory, as far as streamd calls them."""

from collections import deque

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import OffsetSpec
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import (
    InvalidTopicError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from streamd.errors import SilentBrokerError
from tests.simulator.broker import ABORTED

LATENCY = 0.0005, 0.003
"""Seconds of a way to the broker and back."""
ANSWER_SECONDS = 5.0
"""After which a client gives up a question."""
CONNECT_SECONDS = 4.0
DELIVERY_SECONDS = 120.0
"""After which a producer gives up a record."""
RETRY_SECONDS = 0.1
GHOST_SECONDS = 5.0
"""Longest way of a record whose sender is dead."""
LOST_ANSWERS = 0.002
"""Share of the answers to producers that are lost, so that a record is sent again."""
ODD_POLLS = 0.0005
"""Share of the polls of events after which a client is broken, as kafka-python's sometimes are. The changelog's readers end with it."""


def made(world, kind, kafka, settings, fixed=()):
    """In the place of `streamd.ingest.kafka.client._make_client`. Raises: SilentBrokerError."""
    line = Line(world)
    world.scheduler.seam("connect", line.latency())
    if not world.broker.answers(line.machine):
        world.scheduler.seam("no connection", CONNECT_SECONDS)
        raise SilentBrokerError("No broker answers.", "check kafka.bootstrap_servers.")
    chosen = {KafkaConsumer: Consumer, KafkaProducer: Producer}.get(kind, Admin)
    return chosen(line)


class Line:
    """A process's way to the broker."""

    def __init__(self, world):
        self.world, self.broker, self.scheduler = world, world.broker, world.scheduler
        self.process = world.scheduler.current.process
        self.machine = self.process.machine

    def latency(self):
        return self.scheduler.random.uniform(*LATENCY)

    def ask(self, label, seconds=ANSWER_SECONDS):
        """Go to the broker. Raises: KafkaTimeoutError where it is not reached."""
        self.scheduler.seam(label, self.latency())
        if not self.broker.reaches(self.machine):
            self.scheduler.seam(f"{label}: no answer", seconds)
            raise KafkaTimeoutError(f"{label}: no answer")

    def answer(self, label, seconds=ANSWER_SECONDS):
        """Come back from it. Raises: KafkaTimeoutError where the answer is lost."""
        if not self.broker.answers(self.machine):
            self.scheduler.seam(f"{label}: answer lost", seconds)
            raise KafkaTimeoutError(f"{label}: answer lost")


class Consumer:
    """A consumer of assigned partitions that reads what is committed. stable: the end of what can be read, as last seen."""

    def __init__(self, line):
        self._line, self._broker, self._random = line, line.broker, line.scheduler.random
        self._at, self._epochs, self._paused, self._ends, self.stable = {}, {}, set(), {}, {}
        self._is_open, self._is_broken = True, False
        self.topic_ids = {}
        """Topic -> its id in the newest metadata. A fetch of another id fails, and renews them."""
        self.notes = []
        """Called after each answer to a fetch."""

    def _check(self):
        assert self._is_open, "this consumer is closed"
        if self._is_broken:
            raise ValueError("this consumer is broken")

    def assign(self, partitions):
        self._check()
        self._at = {tp: self._at.get(tp) for tp in partitions}
        self._epochs = {tp: self._epochs.get(tp, -1) for tp in partitions}
        self._paused &= set(partitions)

    def seek(self, partition, offset, epoch=-1):
        self._check()
        self._at[partition], self._epochs[partition] = offset, epoch

    def position(self, partition, timeout_ms=None):
        self._check()
        return self._at[partition]

    def highwater(self, partition):
        return self._ends.get(partition)

    def paused(self):
        return set(self._paused)

    def pause(self, *partitions):
        self._paused |= set(partitions)

    def resume(self, *partitions):
        self._paused -= set(partitions)

    def beginning_offsets(self, partitions, timeout_ms=None):
        return self._offsets("first offsets", partitions, lambda p: p.start)

    def end_offsets(self, partitions, timeout_ms=None):
        return self._offsets("end offsets", partitions, lambda p: p.stable)

    def _offsets(self, label, partitions, of):
        self._check()
        self._line.ask(label)
        found = {tp: self._broker.find(tp) for tp in partitions}
        if any(p is None or not p.has_leader for p in found.values()):
            self._line.scheduler.seam(f"{label}: no leader", ANSWER_SECONDS)
            raise KafkaTimeoutError(f"{label}: no leader")
        out = {tp: of(p) for tp, p in found.items()}
        self._line.answer(label)
        return out

    def poll(self, timeout_ms=0, max_records=500):
        self._check()
        scheduler = self._line.scheduler
        until = scheduler.now + timeout_ms / 1000
        if "events" in {tp.topic for tp in self._at} and self._random.random() < ODD_POLLS * self._line.world.odds:
            self._is_broken = True
            self._check()
        while True:
            scheduler.seam("poll", self._line.latency())
            if self._broker.answers(self._line.machine):
                found = self._fetch(max_records)
                for note in self.notes:
                    note()
                if found:
                    return found
            left = until - scheduler.now
            if left <= 0:
                return {}
            scheduler.wait(self._broker.waiters, left, "poll: nothing yet")

    def _fetch(self, most):
        """What one round of requests brings: of some partitions some records."""
        out = {}
        partitions = [tp for tp in self._at if tp not in self._paused and self._at[tp] is not None]
        self._random.shuffle(partitions)
        for tp in partitions:
            partition = self._broker.find(tp)
            if partition is None or not partition.has_leader or (out and self._random.random() < 0.3):
                continue
            known = self.topic_ids.get(tp.topic)
            self.topic_ids[tp.topic] = partition.topic.id
            if known not in (None, partition.topic.id):
                continue
            self._check_epoch(tp, partition)
            at = self._at[tp]
            if not partition.start <= at <= partition.end:
                raise OffsetOutOfRangeError({tp: at})
            share = most if self._random.random() < 0.7 else self._random.randint(1, 20)
            entries = partition.read(at, min(share, most - sum(map(len, out.values()))))
            self.stable[tp], self._ends[tp] = partition.stable, partition.end
            if not entries:
                continue
            self._at[tp] = entries[-1].offset + 1
            records = [_record(tp, e) for e in entries if not e.is_mark and (e.transaction is None or e.transaction.state != ABORTED)]
            self._epochs[tp] = entries[-1].epoch
            if records:
                out[tp] = records
        return out

    def _check_epoch(self, tp, partition):
        """As KIP-320 has it. Raises: LogTruncationError."""
        epoch = self._epochs.get(tp, -1)
        if epoch < 0 or epoch == partition.epoch:
            return
        end = partition.end_of_epoch(epoch)
        if end is None or end < self._at[tp]:
            raise LogTruncationError({tp: None if end is None else OffsetAndMetadata(end, "", epoch)})
        self._epochs[tp] = partition.epoch

    def close(self, autocommit=True):
        self._is_open = False


def _record(tp, entry):
    return ConsumerRecord(tp.topic, tp.partition, entry.epoch, entry.offset, entry.timestamp, 0, entry.key, entry.value, entry.headers,
                          None, -1 if entry.key is None else len(entry.key), -1 if entry.value is None else len(entry.value), -1)


class Future:
    """As kafka-python's of a record."""

    def __init__(self, scheduler):
        self._scheduler, self._waiters = scheduler, []
        self.is_done, self.exception, self.value = False, None, None

    def failed(self):
        return self.exception is not None

    def settle(self, value=None, exception=None):
        self.is_done, self.value, self.exception = True, value, exception
        self._scheduler.wake(self._waiters)

    def get(self, timeout=None):
        if not self.is_done:
            self._scheduler.wait(self._waiters, timeout, "acknowledgement")
        if not self.is_done:
            raise KafkaTimeoutError("not acknowledged yet")
        if self.exception is not None:
            raise self.exception
        return self.value


class Stored:
    """Metadata of a record that was stored."""

    def __init__(self, offset):
        self.offset = offset


class Producer:
    """An idempotent producer: records arrive in order, each once; answers come late, or not at all, and what a dead process had on its
    way may arrive yet."""

    def __init__(self, line):
        self._line, self._broker, self._scheduler = line, line.broker, line.scheduler
        self._id, self._number = self._broker.new_producer(), 0
        self._queue, self._is_pumping, self._is_open, self._is_ghost = deque(), False, True, False

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        assert self._is_open, "this producer is closed"
        self._scheduler.seam(f"send to {topic}")
        if topic not in self._broker.topics:
            self._scheduler.seam("send: no topic", 30.0)
            raise InvalidTopicError(topic)
        future = Future(self._scheduler)
        self._number += 1
        stamp = timestamp_ms if timestamp_ms is not None else self._line.world.stamp(self._line.machine)
        self._queue.append((future, self._number, self._scheduler.now, topic, partition or 0,
                            {"value": value, "key": key, "headers": headers or (), "timestamp": stamp}))
        self._pump()
        return future

    def _pump(self, seconds=None):
        if not self._is_pumping and self._queue:
            self._is_pumping = True
            self._scheduler.at(self._line.latency() if seconds is None else seconds, self._deliver)

    def _deliver(self):
        """The oldest records arrive, and are acknowledged."""
        self._is_pumping = False
        chance = self._scheduler.random
        if self._line.process.dead and not self._is_ghost:
            self.force_close()
            return self._pump(chance.uniform(0.0, GHOST_SECONDS))
        if not self._queue:
            return None
        number = chance.randint(1, len(self._queue))
        for _ in range(number):
            future, mine, sent_at, topic, at, record = self._queue[0]
            found = self._broker.topics.get(topic)
            partition = found.partitions[at] if found is not None else None
            if partition is None or not partition.has_leader or not self._broker.reaches(self._line.machine):
                if self._scheduler.now - sent_at > DELIVERY_SECONDS:
                    self._queue.popleft()
                    future.settle(exception=KafkaTimeoutError("delivery timed out"))
                return self._pump(RETRY_SECONDS)
            stored = partition.stored.setdefault(self._id, {})
            is_new = mine not in stored
            if is_new:
                stored.clear()
                stored[mine] = partition.append(**record)
            if not self._broker.answers(self._line.machine) or chance.random() < LOST_ANSWERS * self._line.world.odds:
                return self._pump(RETRY_SECONDS)
            # A broker that has it already need not say where.
            told = stored[mine] if is_new or chance.random() < 0.5 else -1
            self._queue.popleft()
            future.settle(Stored(told))
        return self._pump()

    @property
    def _sender(self):
        """Who sends, in kafka-python a thread."""
        return self

    def force_close(self):
        """Some of the records are on their way for a while, the rest never left."""
        self._is_ghost = True
        while len(self._queue) > self._scheduler.random.randint(0, len(self._queue)):
            self._queue.pop()

    def join(self, timeout=None): ...

    def flush(self, timeout=None):
        for entry in list(self._queue):
            entry[0].get(timeout)

    def close(self, timeout=None):
        self._is_open = False


class Admin:
    def __init__(self, line):
        self._line, self._broker = line, line.broker

    def describe_cluster(self):
        self._line.ask("describe cluster")
        self._line.answer("describe cluster")
        return {"cluster_id": "cluster", "brokers": list(range(self._broker.num_brokers))}

    def describe_topics(self, names):
        self._line.ask("describe topics")
        found = [self._described(name) for name in names]
        self._line.answer("describe topics")
        return found

    def _described(self, name):
        topic = self._broker.topics.get(name)
        if topic is None:
            return {"name": name, "error_code": 3, "topic_id": "", "partitions": []}
        partitions = [{"partition_index": p.number, "leader_id": 1 if p.has_leader else -1,
                       "replica_nodes": list(range(min(3, self._broker.num_brokers)))} for p in topic.partitions]
        return {"name": name, "error_code": 0, "topic_id": topic.id, "partitions": partitions}

    def create_topics(self, topics, wait_for_metadata=False):
        self._line.ask("create topics")
        for name, wanted in topics.items():
            if name in self._broker.topics:
                raise TopicAlreadyExistsError(name)
            self._broker.create(name, wanted["num_partitions"], wanted["configs"])
        self._line.answer("create topics")

    def describe_configs(self, resources, config_filter=None):
        self._line.ask("describe configs")
        out = {}
        for resource in resources:
            topic = self._broker.topics.get(resource.name)
            given = {} if topic is None else topic.configs
            found = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1", "min.insync.replicas": "1",
                     "unclean.leader.election.enable": "false", "max.message.bytes": str(self._broker.message_bytes), **given}
            out.setdefault("TOPIC", {})[resource.name] = {k: {"value": v} for k, v in found.items()}
        self._line.answer("describe configs")
        return out

    def list_partition_offsets(self, wanted):
        self._line.ask("list offsets")
        out = {}
        for tp, spec in wanted.items():
            partition = self._broker.find(tp)
            if partition is None:
                raise UnknownTopicOrPartitionError(tp)
            out[tp] = Stored(partition.start if spec == OffsetSpec.EARLIEST else partition.end)
        self._line.answer("list offsets")
        return out

    def delete_records(self, before):
        self._line.ask("delete records")
        for tp, offset in before.items():
            partition = self._broker.find(tp)
            if partition is None:
                raise UnknownTopicOrPartitionError(tp)
            if offset > partition.end:
                raise OffsetOutOfRangeError({tp: offset})
            partition.trim(max(offset, partition.start))
        self._line.answer("delete records")

    def alter_group_offsets(self, group, offsets):
        self._line.ask("commit offsets")
        for tp, at in offsets.items():
            self._broker.offsets[tp] = at.offset
        self._line.answer("commit offsets")
        return {}

    def close(self):
        self._line.scheduler.seam("close admin")


