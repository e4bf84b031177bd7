"""Starting to write and to read a log after many commits of one event, and one commit among many segments."""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import structlog

from streamd.eventlog.journal import journal
from streamd.eventlog.journal.journal import LogState, encode_line
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, Schema
from streamd.storage import Disk
from tests.benchmarks.measure import Row, best_seconds, pick_size
from tests.builders import batch

SCHEMA = Schema()
COMMITS = pick_size((100_000, 1_000_000), (200, 1_000))
SEGMENTS = pick_size((10, 1_000), (2, 10))


class UnsyncedDisk(Disk):
    """Leaves out the syncs, which only make the building of a log slow."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


def run() -> list[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rolled, how in ((False, "in one journal file, as older releases left it"), (True, "as now")):
            starts = [starts_after(Path(folder) / f"{rolled}-{n}", n, rolled) for n in COMMITS]
            what, less = f"after {COMMITS[1]:,} commits of one event, {how}", f"{COMMITS[0]:,}"
            for name, unit in (("ingest starts", "s"), ("its peak", "MB"), ("a reader opens", "s")):
                rows.append(Row(f"{name} {what}", starts[1][name], unit, starts[0][name], less))
        few, many = (among(Path(folder) / f"segments-{n}", n) for n in SEGMENTS)
        rows += [Row(f"{name}, {SEGMENTS[1]:,} segments", many[name], "us", few[name], f"{SEGMENTS[0]}") for name in many]
    return rows


def starts_after(path: Path, commits: int, rolled: bool) -> dict[str, float]:
    """Seconds and peak megabytes of a process that opens such a log."""
    write_single_commits(path, commits, journal.FILE_LINES if rolled else commits)
    return in_child(__name__, path)


def in_child(module: str, *args: object) -> dict[str, float]:
    """What the module prints as JSON in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, args)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def peak_megabytes() -> float:
    """Most resident memory of this process; what `getrusage` says would begin with that of the parent."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))


def write_single_commits(path: Path, commits: int, lines_a_file: int) -> None:
    """A log whose journal says that each of its edges came in a commit of its own."""
    writer = LogWriter(path, SCHEMA, commits, UnsyncedDisk())
    writer.keys.update({"a": 0, "b": 1})
    for at in range(0, commits, 50_000):
        ids = np.zeros(min(50_000, commits - at), np.int64)
        writer.commit(batch(SCHEMA, ids, ids + 1, at + np.arange(len(ids)), ("a", "b") if not at else ()), Progress(), at)
    done = writer.state
    writer.close()

    # The journal again, a line for each edge; the keys were there before the first.
    for old in (path / "journal").iterdir():
        old.unlink()
    state = LogState(SCHEMA, num_nodes=2, files=done.files, progress=Progress("c", {"t": "id"}))
    out = None
    for seq in range(1, commits + 1):
        if (seq - 1) % lines_a_file == 0:
            if out is not None:
                out.close()
            out = (path / "journal" / f"{seq:020d}.journal").open("wb")
            out.write(encode_line(state.checkpoint()))
        line = {"seq": seq, "term": 0, "rows": 1, "nodes": 2, "watermark": seq,
                "files": [{"path": done.segments[0].path, "rows": [seq - 1, seq], "labels": [0, 0], "crc": 0}],
                "progress": {"cluster": "c", "topics": {"t": "id"}, "positions": {"t": {"0": [seq, 0, [], 3]}}},
                "segments": [[0, seq, 0, commits, 0, [seq]]]}
        out.write(encode_line(line))
        if seq % lines_a_file == 0:
            state = _at(state, line)
    out.close()
    (path / "published").write_bytes(commits.to_bytes(8, "little"))


def _at(state: LogState, line: dict) -> LogState:
    """The state after a line, whatever lies between."""
    return LogState.restored({**state.checkpoint(), "checkpoint": line["seq"] - 1}).after(line)


def among(path: Path, segments: int) -> dict[str, float]:
    """Microseconds of one commit and of what a reader does with it, among so many segments."""
    writer = LogWriter(path, SCHEMA, 20, UnsyncedDisk())
    writer.keys.update({"a": 0, "b": 1})
    twenty = np.zeros(20, np.int64)
    for number in range(segments - 1):
        writer.commit(batch(SCHEMA, twenty, twenty + 1, 20 * number + np.arange(20), ("a", "b") if not number else ()), Progress(), 0)
    writer.segment_edges = 100_000
    reader, one, seq = LogReader.open(path), np.zeros(1, np.int64), 20 * segments
    writer.commit(batch(SCHEMA, one, one + 1, one + seq - 1), Progress(), 0)
    time.sleep(2.1)  # the journal's folder, which changed just now, is listed at each commit until then
    taken: dict[str, list[float]] = {"a commit, no syncs": [], "a reader takes it in": [], "a bound by time": []}
    for at in range(seq, seq + 300):
        edge, progress = batch(SCHEMA, one, one + 1, one + at), Progress("c", {}, {"t": {0: Position(at)}})
        works = (partial(writer.commit, edge, progress, at), reader.refresh, partial(reader.lower_bound, at - 10))
        for seconds, work in zip(taken.values(), works, strict=True):
            begun = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begun)
    line = {"seq": writer.state.seq + 1, "rows": 1, "nodes": 2, "watermark": 0, "files": [],
            "progress": {"cluster": "", "topics": {}, "positions": {}}, "segments": [writer.state.segments[-1].entry()]}
    after = best_seconds(lambda: [writer.state.after(line) for _ in range(100)]) / 100
    writer.close()
    return {"a line applied to the state": 1e6 * after, **{n: 1e6 * float(np.median(s)) for n, s in taken.items()}}


def main(path: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    begun = time.perf_counter()
    tail = JournalTail.open(path)
    opened = time.perf_counter() - begun
    begun = time.perf_counter()
    writer = LogWriter(path, SCHEMA, tail.state.num_edges)
    started = time.perf_counter() - begun
    writer.close()
    print(json.dumps({"ingest starts": started, "its peak": peak_megabytes(), "a reader opens": opened}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
