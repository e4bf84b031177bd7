"""Learned lines of a log on several machines: a process beside ingest puts batches into the outbox, as a trainer in the leader's term will.

Each machine that may lead has one. It does not ask who leads, so a deposed leader has batches left: once it leads again, a batch counts only
if no other line came since it was written.
"""

import msgspec

from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.recovery import published_seq
from tests.simulator.scheduler import Failure

PAUSES = 0.5, 4.0
"""Seconds between two batches."""


class Scribes:
    """Owner: the world. after: id of a batch -> the size of the file of windows that it follows, None while nobody knows yet."""

    def __init__(self):
        self.after, self._taken, self.num_lines = {}, set(), 0

    def take(self, seq, first, lines):
        """Take the lines that a commit appended from byte `first` on. Raises: Failure."""
        for name in {msgspec.json.decode(line)["of"] for line in lines}:
            if name in self._taken:
                raise Failure(f"commit {seq} has the batch {name}, which the log has already")
            if self.after.get(name) not in (None, first):
                raise Failure(f"commit {seq} has the batch {name} at byte {first}, which follows byte {self.after[name]}")
            self._taken.add(name)
        self.num_lines += len(lines)


def run_scribe(settings, stop, chance, scribes):
    """The role. chance: random numbers of this machine."""
    data_dir = settings.data_dir
    while not stop.wait(chance.uniform(*PAUSES)):
        if not (data_dir / "published").exists() or not outbox.is_empty(data_dir):
            continue
        name = f"{chance.getrandbits(64):016x}"
        size = outbox._published_size(data_dir / WINDOWS, published_seq(data_dir))
        scribes.after[name] = None
        outbox.put(data_dir, [(WINDOWS, b'{"of":"%s","n":%d}' % (name.encode(), n)) for n in range(chance.choice([1, 3]))])
        # A follower may have written to the file meanwhile, or ingest has the batch already.
        batch = outbox.read(data_dir)
        if batch is not None and batch.after[WINDOWS] == size and name.encode() in bytes(batch.lines[0][1]):
            scribes.after[name] = size
