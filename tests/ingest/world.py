"""Ingest on topics that a test writes itself: a source without a broker, the real loop, the real log."""

import json
from pathlib import Path

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress
from streamd.ingest.dead_letters.sinks import LocalDeadLetters
from streamd.ingest.loop import IngestLoop
from streamd.settings.loading import schema_of
from streamd.storage import DISK, Disk
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import ManualClock, settings


class FakeSource:
    """Partitions of one topic, or of one each, as lists of records. Each poll answers `per_poll` partitions in turn, with `max_records` each.

    stable: last stable offset of a partition, its end where absent. mute: partitions that send nothing.
    """

    has_changed, missing_topics = False, ()

    def __init__(self, clock, parts, topics=()):
        self.clock, self.parts = clock, parts
        self.partitions = [TopicPartition(topics[p] if topics else "events", p) for p in range(len(parts))]
        self.stable, self.mute, self.answers, self.per_poll, self.max_records = {}, set(), True, len(parts), 10**6
        self.at, self.turn, self.paused = [0] * len(parts), 0, []

    def begin(self, stored):
        begun = [stored.positions.get("events", {}).get(p, Position(0)) for p in range(len(self.parts))]
        self.at = [p.offset for p in begun]
        return begun, []

    def poll(self, timeout_seconds, max_records):
        out = {}
        for _ in range(self.per_poll):
            p = self.turn = (self.turn + 1) % len(self.parts)
            end = min(self.at[p] + self.max_records, self.stable.get(p, len(self.parts[p])))
            if p not in self.mute and p not in self.paused and end > self.at[p]:
                out[p] = self.parts[p][self.at[p]: end]
                self.at[p] = end
        self.clock.advance(0.001 if out else timeout_seconds)
        return out

    def records_before(self, source, offset):
        return self.parts[source][:offset]

    def position(self, source):
        return self.at[source]

    def end(self, source):
        return self.stable.get(source, len(self.parts[source]))

    @property
    def answered_at(self):
        return self.clock.monotonic() if self.answers else -1e9

    has_asked = True

    def confirm_all_read(self):
        return self.answers and all(self.at[p] >= self.end(p) for p in range(len(self.parts)))

    def pause(self, sources):
        self.paused = sources

    def publish(self, positions): ...

    def close(self): ...

    def progress(self, positions):
        return Progress("c", {"events": "id"}, {"events": dict(enumerate(positions))})


class World:
    """A data directory, its topic, and an ingest process that may be killed and started.

    letters_disk: the disk that dead letters are written to. topics: of each partition, "events" where absent.
    """

    def __init__(self, path: Path, num_partitions: int = 1, letters_disk: Disk = DISK, topics=(), **values):
        self.path, self.clock, self.letters_disk = path, ManualClock(), letters_disk
        self.settings = settings(path, ingest__segment_edges=values.pop("segment_edges", 4096), **values)
        self.parts = [[] for _ in range(num_partitions)]
        self.source = FakeSource(self.clock, self.parts, topics)
        self.writer = None
        self.start()

    def send(self, partition, *events, stamp_us=None, headers=(), value=None, key=None):
        """One record of one or several events, produced now."""
        body = value if value is not None else json.dumps(events[0] if len(events) == 1 else list(events)).encode()
        stamp = (self.clock.now_us() if stamp_us is None else stamp_us) // 1000
        part = self.parts[partition]
        part.append(ConsumerRecord("events", partition, 0, len(part), stamp, 0, key, body, list(headers), None, -1, len(body), -1))

    def start(self):
        self.writer = LogWriter(self.path, schema_of(self.settings), self.settings.ingest.segment_edges)
        self.letters = LocalDeadLetters(self.path / "deadletter", 10**6, self.letters_disk)
        self.loop = IngestLoop(self.settings, self.writer, self.letters, self.clock, Heartbeat(self.path, "ingest"))
        assert self.loop.begin(self.source)
        return self

    def kill(self):
        """As kill -9 does: nothing more is committed."""
        self.writer.close()
        return self

    def stop(self):
        """As SIGTERM does: what may go is committed."""
        while self.loop.commit(self.source, final=True):
            pass
        return self.kill()

    def step(self, times=1):
        for _ in range(times):
            assert self.loop.step(self.source)
        return self

    def run(self, seconds):
        """Turn for so long, by the world's own clock."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.step()
        return self

    def events(self):
        """(source, destination, time) by key, as the log shows them."""
        log = self.reader()
        src, dst, when = log.edges(log.first_edge, log.num_edges) if log.num_edges else ([], [], [])
        hidden = log.hidden(log.first_edge, log.num_edges) if log.num_edges else []
        return [(log.keys[u], log.keys[v], int(t)) for u, v, t, gone in zip(src, dst, when, hidden, strict=True) if not gone]

    def reader(self):
        return LogReader.open(self.path)

    def dead_letters(self):
        self.letters.flush()
        return self.letters_written()

    def letters_written(self):
        """Letters in the file, whether they are synced or not."""
        return [json.loads(line) for line in (self.path / "deadletter/current.jsonl").read_text().splitlines()]


