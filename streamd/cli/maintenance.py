"""Work of the command line on a data directory, whether or not the daemon runs on it: compaction,
checks, backtests and static training."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.table import Table

from streamd.errors import LockedError, SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import (
    Hold,
    ask_to_compact,
    asked_to_compact,
    read_compacted,
    read_holds,
)
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.exchange.importing import import_file
from streamd.exchange.tables import Columns
from streamd.ingest.dead_letters.sinks import make_dead_letters
from streamd.roles import ARCHIVE, COMPACT
from streamd.settings.loading import Settings
from streamd.store.archive import read_forgotten
from streamd.telemetry.heartbeat import read_beat
from streamd.telemetry.progress import ProgressLine
from streamd.tensors import unpack

if TYPE_CHECKING:
    from streamd.evaluation.backtest import Plan
    from streamd.evaluation.grid import Combination
    from streamd.evaluation.report.content import Asked, Report

POLL_SECONDS = 0.2
"""Pause between two looks at the directory: short for a person, long for a disk."""
REWRITING = "rewriting segments"
"""Name of that part of the work in progress lines."""
NOTHING_SCORED = (
    "No window could be scored: there are too few events, or --initial leaves none.",
    "give more events, or a smaller --initial or windows.width_seconds.",
)
"""Message and operator action of a backtest that found nothing."""


def open_log(data_dir: Path) -> LogReader:
    """Open a reader of the log in a data directory. Raises: StreamdError where there is none."""
    reader = LogReader.open(data_dir)
    if reader is None:
        raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
    return reader


def damage_outside_the_log(settings: Settings) -> Iterator[str]:
    """Yield a line for each damaged file that is not the log's: versions, the trainer's checkpoint,
    and stored facts, memory and replay."""
    from streamd.registry import Registry
    from streamd.training.checkpoint import read_cursor

    if (settings.data_dir / "models").exists():
        for name, error in Registry.of(settings).damage():
            yield f"models/{name}: {error}"
    try:
        read_cursor(settings.data_dir / "train" / "checkpoints")
    except StreamdError as error:
        yield str(error)

    # Stored arrays, also where older releases kept them.
    for pattern in (
        "roles/*/facts/*",
        "roles/*/*",
        "train/facts/*",
        "serve/facts/*",
        "serve/*",
        "train/replay/*",
        "train/nightly/*/facts*",
    ):
        for path in sorted(settings.data_dir.glob(f"{pattern}.safetensors")):
            try:
                unpack(path)
            except StreamdError as error:
                yield str(error)


def compact_log(settings: Settings, wait_seconds: float, line: ProgressLine) -> tuple[bool, str]:
    """Ask for compaction, and do it in this process where no ingest runs.

    Returns: whether all that was deleted is gone, and what to tell the user.
    """
    # The request outlives this process.
    log = open_log(settings.data_dir)
    deadline = time.monotonic() + wait_seconds
    if not log.deletions.count:
        return _until_forgotten(settings, deadline, line, "nothing was deleted")
    compaction_request = log.deletions.newest_place
    if settings.log.name:
        from streamd.replica.models.topic import KafkaModelsTopic
        from streamd.replica.move_requests import compact_everywhere

        topic = KafkaModelsTopic(settings.kafka, settings.log.name)
        try:
            done, text = compact_everywhere(
                settings, compaction_request, wait_seconds, line.begin, topic
            )
        finally:
            topic.close()
        return _until_forgotten(settings, deadline, line, text) if done else (False, text)
    ask_to_compact(settings.data_dir, compaction_request)

    # A pass can do more only once a hold has moved.
    tried: dict[str, Hold] | None = None
    while asked_to_compact(settings.data_dir) is not None:
        holds = read_holds(settings.data_dir)
        if holds != tried and _try_here(settings, log.state.schema, line):
            tried = holds
        waiting = _waiting_for(settings.data_dir, compaction_request)
        if time.monotonic() >= deadline and asked_to_compact(settings.data_dir) is not None:
            line.leave()
            return (
                False,
                f"not all is gone yet: {waiting}; the request stays, and ingest goes on with it",
            )
        _say_how_far(settings.data_dir, compaction_request, line)
        time.sleep(POLL_SECONDS)
    gone = "compacted: what was deleted is gone from the log and from all that was learned"
    return _until_forgotten(settings, deadline, line, gone)


def _until_forgotten(
    settings: Settings, deadline: float, line: ProgressLine, done: str
) -> tuple[bool, str]:
    """Wait until the archive has taken out of store and changelog what a compaction removed, where
    other machines follow this log.

    deadline: monotonic seconds. Returns: whether it is gone, and what to tell the user, `done`
    where nothing waits.
    """
    log = settings.log
    compacted = read_compacted(settings.data_dir)
    if not (log.name and log.store) or log.member == "replica" or compacted is None:
        return True, done
    while read_forgotten(settings.data_dir) < compacted.seq:
        if time.monotonic() >= deadline:
            line.leave()
            return False, (
                f"{done}; store and changelog may still hold it: {_archive_waits(settings)}; "
                "the archive goes on with it"
            )
        line.of("waiting for store and changelog", 0, 1, "compactions")
        time.sleep(POLL_SECONDS)
    return True, f"{done}, and from store and changelog"


def _archive_waits(settings: Settings) -> str:
    """What the archive waits for before a compaction is done, in words."""
    beat = read_beat(settings.data_dir, ARCHIVE)
    if beat is None or not beat.alive:
        return "the role archive does not run"
    return str(beat.detail.get("error") or beat.detail.get("forgetting") or beat.state)


def _try_here(settings: Settings, schema: Schema, line: ProgressLine) -> bool:
    """Compact in this process. Returns: False where an ingest has the directory, which then does
    it."""
    try:
        writer = LogWriter(settings.data_dir, schema, settings.ingest.segment_edges)
    except LockedError:
        return False
    # Compaction only: retention is the daemon's, under its own settings.
    try:
        Housekeeper(
            writer,
            settings.retention.model_copy(update={"max_age_seconds": None, "max_bytes": None}),
            make_dead_letters(settings).purge,
            settings.holds.lease_seconds,
        ).compact(lambda done, total: line.of(REWRITING, done, total, "segments"))
    finally:
        writer.close()
    return True


def _behind(data_dir: Path, compaction_request: int) -> dict[str, int]:
    """The roles that compaction waits for -> the event ids they are at."""
    at = {role: min(h.edge, h.purged_before_event) for role, h in read_holds(data_dir).items()}
    return {role: edge for role, edge in at.items() if edge < compaction_request}


def _waiting_for(data_dir: Path, compaction_request: int) -> str:
    behind = [
        f"{role} (at edge {at} of {compaction_request})"
        for role, at in _behind(data_dir, compaction_request).items()
    ]
    if behind:
        return f"waiting for {', '.join(behind)}"
    beat = read_beat(data_dir, COMPACT)
    error = "" if beat is None else beat.detail.get("error", "")
    return f"{REWRITING} failed: {error}" if error else REWRITING


def _say_how_far(data_dir: Path, compaction_request: int, line: ProgressLine) -> None:
    """Show how far compaction is, by the holds and by the heartbeat of whoever does it."""
    behind = _behind(data_dir, compaction_request)
    beat = read_beat(data_dir, COMPACT)
    if behind:
        line.of(
            f"waiting for {', '.join(behind)}", min(behind.values()), compaction_request, "edges"
        )
    elif beat is not None and beat.detail["wish"] == compaction_request:
        line.of(REWRITING, beat.detail["passed"], beat.detail["total"], "segments")


def backtest_file(
    settings: Settings,
    file: Path | None,
    columns: Columns,
    plan: "Plan",
    progress: Callable[[str, int, int, str], None],
    asked: "Asked | None" = None,
) -> "tuple[list[Table | str], Report]":
    """Backtest a file, or the log of data_dir where `file` is None.

    Args: progress: called with (part of the work, done, in all, unit); asked: what the report says
    was run.
    Returns: what to print, which is a table, one of labels where there are any, and the verdict;
    and the report. Raises: StreamdError where nothing can be read or scored.
    """
    from streamd.evaluation.backtest import (
        COLUMNS,
        SHORT_LABEL_TITLES,
        SHORT_TITLES,
        backtest,
        counted,
    )
    from streamd.evaluation.report.content import Asked, report_of
    from streamd.gpu import choose_device
    from streamd.training.learning_settings import LearningSettings

    torch.set_num_threads(settings.training.threads)
    with _log_of(settings, file, columns, progress) as (log, times):
        learning = LearningSettings.of(settings, choose_device(settings.device))
        result = backtest(learning, log, plan, progress)
    if result is None:
        raise StreamdError(*NOTHING_SCORED)

    # The tables and the verdict are for the terminal.
    caption = (
        f"{result.num_events:,} events in {counted(len(result.windows), 'window')}, "
        "each scored before it was learned"
    )
    notes = " ".join(filter(None, (result.nightly_note(), result.late_note())))
    note = notes and f". {notes}"
    title = f"streamd backtest of {file or settings.data_dir}"
    told: list[Table | str] = [_table(COLUMNS, result.table(), title, caption + times + note)]
    if sets := result.set_table(SHORT_TITLES):
        told.append(_table(sets[0], sets[1:], None, "the same windows"))
    if labels := result.label_table():
        caption = f"{result.num_labels:,} labels, each predicted before it was learned"
        told.append(_table(labels[0], labels[1:], None, caption))
    if sets := result.label_set_table(SHORT_LABEL_TITLES):
        told.append(_table(sets[0], sets[1:], None, "the same labels"))
    return [*told, result.verdict()], report_of(result, title, asked or Asked())


def backtest_grid(
    runs: "Sequence[Combination]",
    file: Path | None,
    columns: Columns,
    plan: "Plan",
    progress: Callable[[str, int, int, str], None],
    asked: "Asked | None" = None,
) -> "tuple[list[Table | str], Report]":
    """Backtest the live regime under several settings. Arguments as in `backtest_file`.

    Args: runs: settings, those in force first. Returns: what to print, which is a table and which
    settings to take; and the report. Raises: StreamdError where nothing can be read or scored.
    """
    from streamd.evaluation.grid import COLUMNS, run_grid
    from streamd.evaluation.report.content import Asked, grid_report_of

    settings = runs[0].settings
    with _log_of(settings, file, columns, progress) as (log, times):
        result = run_grid(runs, log, plan, progress)
    if result is None:
        raise StreamdError(*NOTHING_SCORED)
    title = f"streamd backtest of {file or settings.data_dir}"
    caption = f"live, on the same {len(result.runs[0].windows):,} windows{times}"
    told: list[Table | str] = [_table(COLUMNS, result.table(), title, caption), result.advice()]
    return told, grid_report_of(result, title, asked or Asked())


@contextmanager
def _log_of(
    settings: Settings,
    file: Path | None,
    columns: Columns,
    progress: Callable[[str, int, int, str], None],
) -> Iterator[tuple[LogReader, str]]:
    """Yield the log of data_dir, or a temporary one of a file's events, and how the file's times
    were read."""
    if file is None:
        yield open_log(settings.data_dir), ""
        return

    # A file is imported into a log, so that it takes the path that live events take.
    with tempfile.TemporaryDirectory(prefix="streamd-backtest-") as folder:
        own = settings.model_copy(update={"data_dir": Path(folder) / "log"})
        done = import_file(
            own, file, columns, lambda done, of: progress(f"reading {file}", done, of, "events")
        )
        notes = "; ".join(note for note in (done.times, done.rounded.words) if note)
        yield open_log(own.data_dir), f"; {notes}"


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, caption: str
) -> Table:
    # In a narrow terminal the names wrap, and not the numbers.
    table = Table(title=title, caption=caption, box=None)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row)
    return table


def train_static(
    settings: Settings,
    epochs: int,
    folder: Path | None,
    progress: Callable[[str, int, int, str], None],
) -> Iterator[str]:
    """Train on the log as a static graph.

    Args: epochs: passes over the training edges; folder: a new folder for the best weights, None
    for none; progress: called with (part of the work, done, in all, unit).
    Yields: what to tell the user, as it is known. Raises: StreamdError, before anything is learned.
    """
    from streamd.gpu import choose_device
    from streamd.training.learning_settings import LearningSettings
    from streamd.training.static import StaticTraining

    # Refuse before hours of learning what would fail after them.
    if folder is not None and folder.exists():
        raise SettingsError(f"{folder} exists already.", "name a new folder.")
    torch.set_num_threads(settings.training.threads)
    learning = LearningSettings.of(settings, choose_device(settings.device))
    training = StaticTraining(learning, open_log(settings.data_dir), progress)
    yield (
        f"{training.settings.name}, {len(training.train):,} edges to learn, "
        f"{len(training.valid):,} to validate, {len(training.test):,} to test"
    )

    # Validation chooses the weights, and the test sees only those.
    for epoch in training.run(epochs):
        learned = f"loss {epoch.loss:.4f}, " if epoch.number else "untrained, "
        yield (
            f"epoch {epoch.number}: {learned}validation MRR {epoch.valid['mrr']:.4f}, "
            f"{epoch.seconds:.1f} s"
        )
    test = training.tested()
    yield (
        f"test MRR {test['mrr']:.4f}, AP {test['ap']:.4f}, "
        f"by the weights of epoch {training.best.number}"
    )
    if folder is not None:
        training.write(folder, test)
        yield f"weights: {folder}"


def ages_of_facts(text: str, chunk: int) -> tuple[int | None, ...]:
    """Parse `Plan.stale` from text such as "5,50,window"; a window is None. Raises:
    SettingsError."""
    ages: list[int | None] = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        if part != "window" and not (part.isdigit() and int(part) <= chunk):
            raise SettingsError(
                f"--stale holds {part!r}; ages are numbers of events up to model.memory_chunk "
                f"({chunk}), or window."
            )
        ages.append(None if part == "window" else int(part))
    return tuple(ages)
