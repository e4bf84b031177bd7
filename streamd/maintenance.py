"""What the command line does to a data directory, whether or not the daemon runs on it."""

import csv
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.table import Table

from streamd.clock import SystemClock
from streamd.errors import LockedError, SettingsError, StreamdError
from streamd.events import Schema
from streamd.ingest.deadletter import make_dead_letters
from streamd.ingest.load import Loader
from streamd.ingest.tables import Columns, Misfit, Times, count_rows, read_events
from streamd.segments.holds import Hold, ask_to_compact, asked_to_compact, read_holds
from streamd.segments.keeper import COMPACT, Keeper
from streamd.segments.log import LogWriter
from streamd.segments.reader import LogReader
from streamd.segments.tguf import TGUFFile, open_tguf
from streamd.settings import Settings, schema_of
from streamd.storage import write_durably
from streamd.telemetry.heartbeat import read_beat
from streamd.telemetry.progress import ProgressLine
from streamd.tensors import unpack

if TYPE_CHECKING:
    from streamd.evaluation.backtest import Plan

POLL_SECONDS = 0.2
IMPORT_ROWS = 65_536
REWRITING = "rewriting segments"


def open_log(data_dir: Path) -> LogReader:
    """A reader of the log in a directory. Raises: StreamdError where there is none."""
    reader = LogReader.open(data_dir)
    if reader is None:
        raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
    return reader


def write_keys(log: LogReader, path: Path) -> None:
    """Node ids and keys as CSV; a deleted node has no line."""
    with path.open("x", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(("id", "key"))
        writer.writerows((node, key) for node, key in enumerate(log.keys) if key is not None)


def damage_beside_the_log(settings: Settings) -> Iterator[str]:
    """What is wrong with versions, the trainer's checkpoint, and stored facts, memory and replay; a line each."""
    from streamd.registry import Registry
    from streamd.training.checkpoint import read_cursor

    if (settings.data_dir / "models").exists():
        for name, error in Registry(settings).damage():
            yield f"models/{name}: {error}"
    try:
        read_cursor(settings.data_dir / "train" / "checkpoints")
    except StreamdError as error:
        yield str(error)
    for pattern in ("train/facts/*", "serve/facts/*", "serve/*", "train/replay/*"):
        for path in sorted(settings.data_dir.glob(f"{pattern}.safetensors")):
            try:
                unpack(path)
            except StreamdError as error:
                yield str(error)


def compact_log(settings: Settings, wait_seconds: float, line: ProgressLine) -> tuple[bool, str]:
    """Ask for compaction, and do it here where no ingest runs. Returns: whether all is gone, and what to tell the user."""
    log = open_log(settings.data_dir)
    places = log.deletions.places
    if not len(places):
        return True, "nothing was deleted"
    wish = int(places.max())
    ask_to_compact(settings.data_dir, wish)
    deadline = time.monotonic() + wait_seconds
    tried: dict[str, Hold] | None = None
    while asked_to_compact(settings.data_dir) is not None:
        holds = read_holds(settings.data_dir)
        if holds != tried and _try_here(settings, log.state.schema, line):
            tried = holds
        waiting = _waiting_for(settings.data_dir, wish)
        if time.monotonic() >= deadline and asked_to_compact(settings.data_dir) is not None:
            line.leave()
            return False, f"not all is gone yet: {waiting}; the wish stands, and ingest goes on with it"
        _say_how_far(settings.data_dir, wish, line)
        time.sleep(POLL_SECONDS)
    return True, "compacted: what was deleted is gone from the log and from all that was learned"


def _try_here(settings: Settings, schema: Schema, line: ProgressLine) -> bool:
    """A pass by this process; False where an ingest has the directory, which then does it."""
    try:
        writer = LogWriter(settings.data_dir, schema, settings.ingest.segment_edges)
    except LockedError:
        return False
    try:
        Keeper(writer, settings.retention.model_copy(update={"max_age_seconds": None, "max_bytes": None}),
               make_dead_letters(settings).purge).compact(
                   lambda done, total: line.of(REWRITING, done, total, "segments"))
    finally:
        writer.close()
    return True


def _behind(data_dir: Path, wish: int) -> dict[str, int]:
    """Roles that compaction waits for, and the edges they are at."""
    at = {role: min(h.edge, h.clean_edge) for role, h in read_holds(data_dir).items()}
    return {role: edge for role, edge in at.items() if edge < wish}


def _waiting_for(data_dir: Path, wish: int) -> str:
    behind = [f"{role} (at edge {at} of {wish})" for role, at in _behind(data_dir, wish).items()]
    return f"waiting for {', '.join(behind)}" if behind else REWRITING


def _say_how_far(data_dir: Path, wish: int, line: ProgressLine) -> None:
    """By what roles and an ingest beside this process leave in the directory."""
    behind = _behind(data_dir, wish)
    beat = read_beat(data_dir, COMPACT)
    if behind:
        line.of(f"waiting for {', '.join(behind)}", min(behind.values()), wish, "edges")
    elif beat is not None and beat.detail["wish"] == wish:
        line.of(REWRITING, beat.detail["passed"], beat.detail["total"], "segments")


@dataclass(frozen=True)
class Imported:
    """What an import did. times: their range and how they were read, in words."""

    num_events: int
    times: str


def import_file(
    settings: Settings, path: Path, columns: Columns, progress: Callable[[int, int], None]
) -> Imported:
    """Append the events of a TGUF, CSV, NDJSON or Parquet file to the log.

    progress: told (events so far, in all).

    Integers of a table count in `stream.time_unit`, those of a TGUF file in microseconds always.
    Raises: StreamdError naming the first row that does not fit, and how many events went in before;
    LockedError while ingest runs.
    """
    if not path.is_file():
        raise SettingsError(f"{path} is not a file.", "check the path.")
    file = open_tguf(path) if path.suffix == ".tguf" else None
    schema, clock = schema_of(settings), SystemClock()
    # Whatever can be checked is checked before there is a log, whose widths are fixed for good.
    times = Times("us" if file else settings.stream.time_unit, "us", settings.ingest.max_ahead_seconds, clock)
    if file is not None:
        _check_widths(file, schema)
        _check_times(file, times)
    else:
        events = read_events(path, columns, times)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    writer = LogWriter(settings.data_dir, schema, settings.ingest.segment_edges)
    loader = Loader(settings, writer, clock, str(path))
    try:
        if file is None:
            total = count_rows(path)
            loader.rows(events, lambda done: progress(done, total))
        else:
            _import_tguf(file, loader, progress)
    except StreamdError as error:
        error.args = (f"{error} {loader.num_events:,} events of the file went in before.",)
        raise
    finally:
        writer.close()
    return Imported(loader.num_events, times.said())


def backtest_file(
    settings: Settings, file: Path | None, columns: Columns, plan: "Plan", report: Path | None,
    progress: Callable[[str, int, int, str], None]
) -> Table:
    """Backtest a file, or the log of data_dir where there is none.

    progress: told (part of the work, done, in all, unit).

    Returns: a table to print. Raises: StreamdError where nothing can be read or scored.
    """
    from streamd.evaluation.backtest import COLUMNS, backtest
    from streamd.evaluation.report import write_report

    torch.set_num_threads(settings.training.threads)
    done = None
    with tempfile.TemporaryDirectory(prefix="streamd-backtest-") as folder:
        if file is not None:
            settings = settings.model_copy(update={"data_dir": Path(folder) / "log"})
            done = import_file(settings, file, columns,
                               lambda done, of: progress(f"reading {file}", done, of, "events"))
        result = backtest(settings, open_log(settings.data_dir), plan, progress)
    if result is None:
        raise StreamdError("No window could be scored: there are too few events, or --initial leaves none.",
                           "give more events, or a smaller --initial or windows.width_seconds.")
    title = f"streamd backtest of {file or settings.data_dir}"
    if report is not None:
        shown = {k: str(v) for k, v in (settings.model.model_dump() | settings.training.model_dump()).items()}
        write_durably(report, write_report(result, title, shown).encode())
    caption = f"{result.num_events:,} events in {len(result.windows):,} windows, each scored before it was learned"
    table = Table(title=title, caption=f"{caption}; {done.times}" if done else caption)
    for head in COLUMNS:
        table.add_column(head, justify="right" if head else "left")
    for row in result.table():
        table.add_row(*row)
    return table


def ages_of_facts(text: str, chunk: int) -> tuple[int | None, ...]:
    """`Plan.stale` from "5,50,window". Raises: SettingsError."""
    ages: list[int | None] = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        if part != "window" and not (part.isdigit() and int(part) <= chunk):
            raise SettingsError(f"--stale holds {part!r}; ages are numbers of events up to model.memory_chunk ({chunk}), "
                                "or window.")
        ages.append(None if part == "window" else int(part))
    return tuple(ages)


def _check_widths(file: TGUFFile, schema: Schema) -> None:
    h = file.header
    for have, width, name in ((h.msg_dim, schema.edge_feature_dim, "edge_feature_dim"),
                              (h.node_feat_dim, schema.node_feature_dim, "node_feature_dim"),
                              (h.label_dim, schema.label_dim, "label_dim")):
        if have not in (0, width) or (have == 0 and name == "edge_feature_dim" and width):
            raise SettingsError(f"{file.path} has width {have} where stream.{name} is {width}.",
                                f"set STREAMD_STREAM__{name.upper()}={have}, and use a new data_dir.")


def _check_times(file: TGUFFile, times: Times) -> None:
    """Raises: SettingsError where a time is out of range or ahead of the clock."""
    for name, column in (("time", file.time), ("label_time", file.label_time)):
        if not len(column):
            continue
        # They ascend, so the first and the last speak for all.
        first, last = int(column[0]), int(column[-1])
        try:
            times.check(first, first)
            times.check(last, last)
        except Misfit as misfit:
            raise misfit.at(f"{file.path} {name}") from None
        times.saw(first, last, "microseconds")


def _import_tguf(file: TGUFFile, loader: Loader, progress: Callable[[int, int], None]) -> None:
    features = file.node_feat
    total = len(features) + file.num_edges + file.num_labels
    for a in range(0, len(features), IMPORT_ROWS):
        part = features[a: a + IMPORT_ROWS]
        loader.append(loader.node_features(np.arange(a, a + len(part)), part))
    labels_done, times = 0, file.time
    for a in range(0, max(file.num_edges, 1), IMPORT_ROWS):
        b = min(a + IMPORT_ROWS, file.num_edges)
        until = int(np.searchsorted(file.label_time, times[b])) if b < file.num_edges else file.num_labels
        part_L = slice(labels_done, until)
        loader.append(loader.edges(file.src[a:b], file.dst[a:b], times[a:b], file.msg[a:b]),
                      loader.labels(file.label_n_id[part_L], file.label_time[part_L], file.label_target[part_L]))
        labels_done = until
        progress(loader.num_events, total)
