"""`python -m tests.simulator.mutations`: put faults into the product, and see how fast the simulator finds each.

The first is a fault that the product had. Each is made in a copy of the tree, and looked for by new seeds until one fails.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """path: a file of the product. old: a text that it has once. new: what takes its place. more: further (path, old, new). options: of the
    search."""

    name: str
    path: str
    old: str
    new: str
    more: tuple = ()
    options: tuple = ()

    @property
    def edits(self):
        return [(self.path, self.old, self.new), *self.more]


TRAINED = ("--trained", "1")
MUTATIONS = (
    Mutation("the closed client is used on", "streamd/ingest/kafka/consumer.py",
             "        self._consumer = self._open()\n        self._stable = stable_offsets(self._consumer)\n        self._stable.update",
             "        self._open()\n        self._stable.update"),
    Mutation("rows are not synced before the line", "streamd/eventlog/log_files.py",
             "            self.segment.sync()\n", "            pass\n"),
    Mutation("keys are not synced before the line", "streamd/eventlog/log_files.py",
             "        for fd in self._unsynced:\n            self.disk.sync(fd)\n", ""),
    Mutation("lines are not synced", "streamd/eventlog/journal/journal.py",
             "        self._disk.write(self._fd, lines, self._size)\n        self._disk.sync(self._fd)\n",
             "        self._disk.write(self._fd, lines, self._size)\n"),
    Mutation("commits are shown before the changelog has them", "streamd/eventlog/commits.py",
             "        acknowledged = self._files.state.seq if position is None else position.seq\n",
             "        acknowledged = self._files.state.seq\n"),
    Mutation("a deposed leader does not look at gaps", "streamd/replica/leader/publisher.py",
             "                if offset != self._next_offset:\n", "                if offset < 0:\n"),
    Mutation("a second claim of a term leads too", "streamd/replica/changelog/admission.py",
             "        if claim.term <= self.term:\n", "        if claim.term < self.term:\n"),
    Mutation("records of older terms count", "streamd/replica/changelog/admission.py",
             "        if entry.term < self.term:\n", "        if entry.term < self.term - 1:\n"),
    Mutation("a follower keeps its lines beyond the changelog's end", "streamd/replica/follower/follower.py",
             "            elif last_state(self.data_dir, schema).seq > self._position.seq:\n", "            elif False:\n"),
    Mutation("positions are those of what was read, not of what is in the log", "streamd/ingest/loop.py",
             "        events = at.merger.release(now, limit)\n        positions = at.positions\n",
             "        events = at.merger.release(now, limit)\n"
             "        from streamd.events import Position\n"
             "        positions = [Position(source.position(n)) for n in range(len(at.positions))]\n"),
    Mutation("a restart reads batched records from their begin", "streamd/ingest/loop.py",
             "            events = events.take(lacks_events(events.rows, resume))\n", ""),
    Mutation("letters are not flushed before the commit", "streamd/ingest/loop.py",
             "        self._letters.flush()\n", ""),
    Mutation("late events are dropped", "streamd/ingest/order/batch_builder.py",
             "        kept[[r.row for r in refused]] = False\n", "        kept &= ~late\n"),
    # Faults that the product had.
    Mutation("the changelog is trimmed before the leader's position is durable", "streamd/store/archive.py",
             "until > first and self._is_read_to(until):\n", "until > first:\n"),
    Mutation("a newer manifest takes the place of a log that has its commit", "streamd/replica/follower/bootstrap.py",
             "    if position is not None and state_at(data_dir, manifest.seq) == LogState.restored(manifest.log):\n", "    if False:\n"),
    Mutation("a stop between two assignments commits the first one's positions", "streamd/ingest/loop.py",
             '        """\n        self._assignment = None\n        while', '        """\n        while'),
    Mutation("a topic that was created again is read on by name", "streamd/ingest/kafka/consumer.py",
             "        if _has_new_topic(self._consumer, self._topics):\n", "        if False:\n"),
    Mutation("positions of a topic that was created again stay", "streamd/eventlog/journal/journal.py",
             "    if anew.isdisjoint(old.positions):\n", "    if True:\n"),
    Mutation("a stray record ends who reads the changelog", "streamd/replica/changelog/admission.py",
             "            self._has_damaged |= entry.may_be_commit\n            return Verdict.VOID\n", "            raise _unclaimed_error(entry)\n"),
    Mutation("a standby claims before it knows whether it can lead", "streamd/replica/leader/succession.py",
             "        if not self._fitness.could_lead(answered, is_due=bool(why)) or not why:\n", "        if not why:\n"),
    Mutation("retention of several edge sets opens a folder as a file, and housekeeping ends ingest", "streamd/eventlog/upkeep/housekeeper.py",
             "        files = SegmentFiles(self._writer.data_dir / segment.path, segment, self._writer.schema)\n        return",
             "        files = SegmentFiles(self._writer.data_dir / segment.path, segment, self._writer.schema)\n"
             "        (self._writer.data_dir / segment.path).open(\"rb\").close()\n        return",
             (("streamd/eventlog/upkeep/housekeeper.py", "        self._step(self._retries.run)\n", "        self._step(at_once)\n"),)),
    Mutation("a request to move the champion is executed again after a kill", "streamd/replica/models/publisher.py",
             '            if request.action == "compact" or request.id in done:\n', '            if request.action == "compact":\n', options=TRAINED),
    Mutation("servers follow a move whose version is not there yet", "streamd/replica/models/follower.py",
             "        if champion is None or not self._is_here(champion):\n            return\n", "        if champion is None:\n            return\n", options=TRAINED),
    Mutation("a restart takes the lines of the outbox again", "streamd/eventlog/line_outbox.py",
             "        if batch is None or batch.id == state.outbox:\n", "        if batch is None:\n", options=TRAINED),
    Mutation("a deposed leader takes what it left in its outbox", "streamd/eventlog/line_outbox.py",
             "        if not batch.follows(state):\n", "        if False:\n"),
    Mutation("a restart sends no record of its checkpoint", "streamd/training/window_records.py",
             "            if lines:\n                self._lines.append(lines)\n", "            del lines\n", options=TRAINED),
    Mutation("a restart sends the records of its checkpoint again", "streamd/training/window_records.py",
             "            lines = self._lines.missing([line.encode() for line in self._waiting])\n",
             "            lines = [line.encode() for line in self._waiting]\n", options=TRAINED),
    Mutation("a line lists the events ahead of a position one by one", "streamd/ingest/order/runs.py",
             "        if out and before == before_last and run.first < following:\n", "        if False:\n"),
)
"""Each one alone."""


def find(mutation, cpu_seconds, first):
    """Look for a mutation. Returns: the seed that found it and the first line of what it found, None where none did; and the CPU time."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        shutil.copytree(ROOT / "streamd", Path(folder) / "streamd")
        (Path(folder) / "tests").symlink_to(ROOT / "tests")
        for name, old, new in mutation.edits:
            path = Path(folder) / name
            code = path.read_text()
            assert code.count(old) == 1, f"{name} has the text of {mutation.name!r} {code.count(old)} times"
            path.write_text(code.replace(old, new))
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": folder}
        done = subprocess.run([sys.executable, "-m", "tests.simulator", "1000000", str(first), "--cpu-seconds", str(cpu_seconds), "--first-failure", "--shrink-seconds", "0", *mutation.options],
                              cwd=folder, env=environment, capture_output=True, text=True, check=False)
    used = re.search(r"([\d.]+) s of CPU", done.stdout)
    if used is None:
        raise RuntimeError(done.stdout + done.stderr)
    why = re.search(r"^seed (\d+) fails at turn \d+, digest \w+: (.*)$", done.stdout, re.MULTILINE)
    return (why and (int(why[1]), why[2])), float(used[1])


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.mutations", description=__doc__)
    parser.add_argument("--cpu-seconds", type=float, default=600, help="longest search for each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="part of the names of those to look for")
    given = parser.parse_args()
    missed = 0
    for mutation in MUTATIONS:
        if given.only in mutation.name:
            begun = time.perf_counter()
            found, used = find(mutation, given.cpu_seconds, given.first)
            missed += found is None
            what = "NOT FOUND" if found is None else f"seed {found[0]}: {found[1]}"
            print(f"{mutation.name}: {used:.0f} s of CPU, {time.perf_counter() - begun:.0f} s; {what}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
