"""A scoring role on a log that tests grow and train, with a topic in memory."""

import dataclasses
import json
import time

import numpy as np

from streamd.errors import KafkaError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.registry import Registry
from streamd.roles import SCORE
from streamd.scoring.arrivals import Arrivals
from streamd.scoring.loop import ScoreLoop
from streamd.scoring.record import decode
from streamd.scoring.topic import LAST
from streamd.serving.serving_settings import ServingSettings
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import batch


class Topic:
    """A topic of two partitions. away: it takes nothing. held: what is sent is not acknowledged before `release`."""

    def __init__(self):
        self.partitions, self.alarms = [[], []], []
        self.away = self.held = False
        self.unsent = []
        self.num_sinks = 0

    @property
    def records(self):
        """All records in order of their event ids, as first written; the rest are copies."""
        found = {}
        for part in self.partitions:
            for _, value in part:
                record = decode(value)
                found.setdefault(record.event, record)
        return [found[event] for event in sorted(found)]

    @property
    def num_values(self):
        return sum(map(len, self.partitions))

    def open(self):
        if self.away:
            raise KafkaError("No broker answers.", "wait.")
        self.num_sinks += 1
        return Sink(self)

    def end(self):
        """The highest event before which a record says that all is written."""
        return max((record.complete_before for record in self.last()), default=None)

    def last(self):
        """The scores among the last records of each partition, as the role reads them at its start."""
        if self.away:
            raise KafkaError("No broker answers.", "wait.")
        found = (decode(value) for part in self.partitions for _, value in part[-LAST:])
        return [record for record in found if record is not None]

    def release(self):
        self.held = False
        for sink, key, value in self.unsent:
            if sink.open:
                self.write(key, value)
        self.unsent = []

    def write(self, key, value):
        self.partitions[sum(key) % 2].append((key, value))


class Sink:
    """One producer of the topic."""

    def __init__(self, topic):
        self.topic, self.open = topic, True

    def send(self, key, value, alarm):
        if self.topic.away:
            raise KafkaError("The topic did not take a record.", "wait.")
        if alarm is not None:
            self.topic.alarms.append(json.loads(alarm))
        if self.topic.held:
            self.topic.unsent.append((self, key, value))
        else:
            self.topic.write(key, value)
        return Receipt(self.topic, (self, key, value))

    def abandon(self):
        self.open = False


class Receipt:
    def __init__(self, topic, sent):
        self.topic, self.sent = topic, sent

    def is_written(self):
        if self.topic.away:
            raise KafkaError("The topic did not take a record.", "wait.")
        return self.sent not in self.topic.unsent


class Scoring:
    """The role's loop, turned by hand. leads: whether this machine leads; a test may change it."""

    def __init__(self, settings, topic=None, leads=True):
        self.settings, self.topic = settings, topic or Topic()
        self.leads = leads
        self.loop = ScoreLoop(ServingSettings.of(settings, SCORE), settings.server, Registry.of(settings), Heartbeat(settings.data_dir, SCORE),
                              lambda: self.leads, self.topic.open, self.topic.last)
        self.stop = Stop()
        self.scorer, self.arrivals = self.loop._begin(self.stop)

    def turn(self, until=None, seconds=20):
        """Turn the loop until something is so, or else until nothing is left to do."""
        deadline, idle = time.monotonic() + seconds, 0
        while not until() if until is not None else idle < 3:
            assert time.monotonic() < deadline, "it does not come to that"
            busy = self.loop._turn(self.scorer, self.arrivals) or self.leads and self.scorer._swap.is_under_way
            waits = len(self.loop._outbox) and not self.topic.held and not self.topic.away
            idle = 0 if busy or waits else idle + 1

    def ready(self):
        """Turn until the champion scores."""
        champion = Registry.of(self.settings).champion()
        deadline = time.monotonic() + 20
        while self.scorer.version != champion:
            assert time.monotonic() < deadline
            self.loop._turn(self.scorer, self.arrivals)
        return self

    def grow_old(self):
        """Let all events of the log, and the records that wait or are set aside, have become visible long ago."""
        self.scorer.view.log.refresh()
        self.arrivals = Arrivals(self.scorer.view.log.num_edges, -1e9)
        for one in (*self.loop._outbox._waiting, *self.loop._outbox._set_aside):
            one.visible_at = -1e9

    def check_lead(self):
        self.loop._looked_at = -1e9

    @property
    def skipped(self):
        return {reason: number for reason, number in self.loop.num_skipped.items() if number}


class Stop:
    def is_set(self):
        return False

    def wait(self, seconds):
        time.sleep(min(seconds, 0.01))
        return False


class Feed:
    """Commits the events of a whole log to a growing one."""

    def __init__(self, path, whole, schema, at):
        self.whole = LogReader.open(whole)
        self.schema, self.at = schema, at
        self.writer = LogWriter(path, schema, 100_000)

    def commit(self, until, watermark=None):
        src, dst, time_E = self.whole.edges(self.at, until)
        new = [f"n:{i}" for i in range(len(self.writer.keys), int(max(src.max(), dst.max())) + 1)]
        for key in new:
            self.writer.keys[key] = len(self.writer.keys)
        rows = dataclasses.replace(batch(self.schema, src, dst, time_E, new), msg_ED=self.whole.features_of(np.arange(self.at, until)))
        self.writer.commit(rows, Progress(), int(time_E[-1]) if watermark is None else watermark)
        self.at = until

    def close(self):
        self.writer.close()
