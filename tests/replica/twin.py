"""A changelog in memory that behaves as Kafka's does: offsets, acknowledgements that come late or not at all, gaps."""

from streamd.errors import KafkaError
from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import HEAD_BYTES, Record, decode_records


class TwinReceipt:
    """refused: the broker did not take the record, and says so."""

    def __init__(self, topic, record):
        self.topic, self.record, self.at, self.shown, self.refused = topic, record, None, False, False

    def offset(self):
        if self.topic.failed or self.refused:
            raise KafkaError("a record was not stored")
        if not self.shown:
            return None
        return -1 if self.topic.silent else self.at

    def wait(self, seconds):
        self.topic.turn()


class Broker:
    """What is stored. told: all that ever was, also what was deleted since."""

    def __init__(self):
        self.records, self.begin, self.told = [], 0, []


class Topic:
    """One partition, as one member reaches it. sent: records on their way to the broker. unacknowledged: stored, but their producer
    does not know. silent: the broker does not tell offsets, as where it had a record already. Other members reach the same partition by
    `line`: their records come between, in the order in which the broker takes them."""

    def __init__(self, part_bytes=HEAD_BYTES + 400, broker=None):
        self.broker, self.sent, self.unacknowledged = broker or Broker(), [], []
        self.part_bytes, self.failed, self.silent, self.hold, self.turns, self.patience = part_bytes, False, False, False, 0, 5
        self.on_turn = lambda: None
        self.changelog = ChangelogId("cluster", "id-1", "t.changelog")

    def line(self):
        """Another member's way to the same broker."""
        return Topic(self.part_bytes, self.broker)

    @property
    def records(self):
        return self.broker.records

    @records.setter
    def records(self, records):
        self.broker.records = records

    @property
    def begin(self):
        return self.broker.begin

    @begin.setter
    def begin(self, begin):
        self.broker.begin = begin

    def producer(self):
        return Producer(self)

    def reader(self):
        return Reader(self)

    @property
    def end(self):
        return self.begin + len(self.records)

    def append(self, record):
        """Store a record as the broker does. Returns: its offset."""
        self.records.append((record.headers(), bytes(record.value)))
        self.broker.told.append(record)
        return self.end - 1

    def refuse(self):
        """The broker refuses the oldest record that is on its way; it may take those behind it."""
        if self.sent:
            self.sent.pop(0).refused = True

    def store(self, number=10**9):
        """The broker takes the oldest records that are on their way."""
        for receipt in self.sent[:number]:
            receipt.at = self.append(receipt.record)
            self.unacknowledged.append(receipt)
        del self.sent[:number]

    def acknowledge(self, number=10**9):
        for receipt in self.unacknowledged[:number]:
            receipt.shown = True
        del self.unacknowledged[:number]

    def turn(self):
        """Some time passes: what is on its way arrives, later where the broker holds back."""
        self.on_turn()
        self.turns += 1
        if not self.hold or self.turns % self.patience == 0:
            self.store()
            self.acknowledge()

    def lose(self, keep=0):
        """The producer is gone: of what was on its way the first `keep` records arrive."""
        self.store(keep)
        self.sent.clear()
        self.unacknowledged.clear()

    def delete_before(self, offset):
        del self.records[: offset - self.begin]
        self.begin = offset


class Producer:
    def __init__(self, topic):
        self.topic, self.part_bytes = topic, topic.part_bytes

    def send(self, record):
        receipt = TwinReceipt(self.topic, record)
        self.topic.sent.append(receipt)
        return receipt

    def close(self): ...


class Reader:
    """max_records: most of one read."""

    def __init__(self, topic):
        self.topic, self.position, self.max_records = topic, 0, 1000
        self.changelog = topic.changelog

    def bounds(self):
        return self.topic.begin, self.topic.end

    def seek(self, offset):
        self.position = offset

    def read(self, seconds):
        if not self.topic.begin <= self.position <= self.topic.end:
            raise OutOfRange(f"offset {self.position}")
        first = self.position - self.topic.begin
        found = self.topic.records[first: first + self.max_records]
        out = decode_records((self.position + i, headers, value) for i, (headers, value) in enumerate(found))
        self.position += len(found)
        return out

    def close(self): ...


def record(**values):
    """A record of another leader, of which only the headers are looked at."""
    known = {"offset": 0, "term": 1, "seq": 1, "part": 0, "parts": 1, "line": "00000000", "crc": 0, "value": b""}
    return Record(**{**known, **values})
