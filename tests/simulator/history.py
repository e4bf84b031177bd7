"""The one history that the changelog tells, read as plainly as it can be said."""

from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.replica.changelog.records import Claim, Heartbeat, Record, Stray, decode_records
from tests.simulator.scheduler import Failure

UNKNOWN = ""
"""In the place of the checksum of a line that only a changelog before this one may have had."""


class Told:
    """Reads all that was ever appended to the changelog. lines: checksums of the lines that count, by commit from 1."""

    def __init__(self, broker):
        self._broker = broker
        self.lines, self._term, self._part, self._at = [], 1, 0, 0
        self._topic, self._is_new = None, False

    def check(self, seq, crc):
        """Check that a commit which readers are shown is in the changelog, where there is one. Raises: Failure."""
        topic = next((t for name, t in self._broker.topics.items() if name.endswith(".changelog")), None)
        if topic is None:
            return
        if self._topic not in (None, topic):
            self._term, self._part, self._at, self._is_new = 1, 0, 0, True
        self._topic = topic
        self._read(topic.partitions[0])
        if self._is_new:
            return
        if seq > len(self.lines) or self.lines[seq - 1] not in (UNKNOWN, crc.decode()):
            raise Failure(f"commit {seq} is shown, and the changelog has {self.lines[seq - 1:seq] or 'none'} in its place")

    def _read(self, partition):
        """The first claim of the next term counts; of the term in force, the next commit once all its parts came in order."""
        found = [(e.offset, e.headers, e.value) for e in partition.history[self._at:]]
        self._at = len(partition.history)
        for entry in decode_records(found):
            if isinstance(entry, Claim):
                if entry.term == self._term + 1:
                    self._term, self._part = entry.term, 0
                if self._is_new:
                    # A log that is published anew: commits up to its claim's are in no changelog.
                    self.lines = [*self.lines[:entry.seq], *[UNKNOWN] * (entry.seq - len(self.lines))]
                    self._is_new = False
            elif isinstance(entry, Record) and (entry.term, entry.seq, entry.part) == (self._term, len(self.lines) + 1, self._part):
                self._part += 1
                if self._part == entry.parts:
                    self.lines.append(entry.line)
                    self._part = 0
            else:
                assert isinstance(entry, Record | Heartbeat | Stray), entry


class PlainReader:
    """Reads the changelog without a process, when all have ended."""

    def __init__(self, topic):
        self._partition = topic.partitions[0]
        self.changelog, self.position = ChangelogId("cluster", topic.id, topic.name), 0

    def bounds(self):
        return self._partition.start, self._partition.end

    def seek(self, offset):
        self.position = offset

    def read(self, seconds):
        entries = self._partition.read(self.position, 1000)
        self.position += len(entries)
        return decode_records((e.offset, e.headers, e.value) for e in entries)

    def close(self): ...
