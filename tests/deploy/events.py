"""Events that are sent to the Kafka of a project's containers, and what the logs in its containers hold of them."""

import json
import threading
import time

from kafka import KafkaProducer

COUNT = """
import collections, pathlib
from streamd.eventlog.reader import LogReader
log = LogReader.open(pathlib.Path("/data/log"))
_, dst, _ = log.edges(0, log.num_edges)
names = collections.Counter(log.keys[node] for node in dst.tolist())
print(len(names), sum(names.values()))
"""
"""Counts the distinct destinations in a log, and all its edges."""
ROUND_SECONDS = 0.1


class Stream:
    """Sends events to Kafka in a thread, each with a destination of its own."""

    def __init__(self, broker, *, each=5, age_seconds=0, speed=1, habits=False):
        """each: events a round, of which there are ten a second. age_seconds: event time of the first, before now. speed: seconds of
        event time in a second. habits: half of the sources have one destination instead, which a model can learn."""
        self.producer = KafkaProducer(bootstrap_servers=broker, acks="all", enable_idempotence=True, delivery_timeout_ms=300_000)
        self.sent, self.failed, self.newest = 0, [], 0
        self._each, self._speed, self._habits = each, speed, habits
        self._begun = time.time()
        self._first = self._begun - age_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def pair(self, number):
        """Source and destination of an event."""
        user = number % 50
        return f"u:{user}", f"i:{user % 7}" if self._habits and user % 2 else f"n:{number}"

    def send(self, count):
        for number in range(self.sent, self.sent + count):
            self.newest = self._first + (time.time() - self._begun) * self._speed
            src, dst = self.pair(number)
            event = {"src": src, "dst": dst, "time": int(self.newest * 1000)}
            self.producer.send("events", json.dumps(event).encode(), partition=number % 4).add_errback(self.failed.append)
        self.sent += count

    def _run(self):
        while not self._stop.wait(ROUND_SECONDS):
            self.send(self._each)

    def start(self):
        self._thread.start()

    def stop(self):
        """End, with every event acknowledged. Returns: how many there were."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
        self.producer.flush(120)
        assert self.failed == []
        return self.sent


def counts(project, service):
    """Distinct destinations and edges in a service's log; None while it cannot be read."""
    told = project.exec(service, "python", "-", given=COUNT)
    return tuple(map(int, told.split())) if told else None


def grows(project, service):
    """Wait until a service's log has an event more than now."""
    first = counts(project, service)
    project.wait(lambda: (counts(project, service) or (0,)) > (first or (0,)), f"{service} takes events", 120)
