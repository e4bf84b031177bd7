"""Functions of commands on a data directory, whether or not the daemon runs on it: checks,
backtests and static training."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.table import Table

from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.exchange.importing import import_file
from streamd.exchange.tables import Columns
from streamd.number_texts import count_noun, span
from streamd.settings.loading import Settings
from streamd.tensors import unpack
from streamd.windows.history import ONE_DESTINATION

if TYPE_CHECKING:
    from streamd.evaluation.backtest import Plan
    from streamd.evaluation.grid import Combination
    from streamd.evaluation.report.content import Asked, Report

"""Message and operator action of a backtest that scored no window."""


def open_log(data_dir: Path) -> LogReader:
    """Open a reader of the log in a data directory. Raises: StreamdError if there is none."""
    reader = LogReader.open(data_dir)
    if reader is None:
        raise StreamdError(f"{data_dir} holds no log.", "set --data-dir.")
    return reader


def damage_outside_the_log(settings: Settings) -> Iterator[str]:
    """Yield a line for each damaged file outside the log: versions, the trainer's checkpoint, and
    stored facts, memory and replay."""
    from streamd.registry import Registry
    from streamd.registry.registry import find_damage
    from streamd.training.checkpoint import read_cursor

    if (settings.data_dir / "models").exists():
        for name, error in find_damage(Registry.of(settings)):
            yield f"models/{name}: {error}"
    try:
        read_cursor(settings.data_dir / "train" / "checkpoints")
    except StreamdError as error:
        yield str(error)

    # Stored arrays, including those in the folders of older releases.
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


def backtest_file(
    settings: Settings,
    file: Path | None,
    columns: Columns,
    plan: "Plan",
    progress: Callable[[str, int, int, str], None],
    asked: "Asked | None" = None,
) -> "tuple[list[Table | str], Report]":
    """Backtest a file, or the log of data_dir if `file` is None.

    Args: progress: called with (part of the work, done, in all, unit); asked: command and settings
    for the report.
    Returns: the output to print, and the report. The output is the table of regimes and rules, one
    by novelty, those of sets and labels if there are any, and the verdict.
    Raises: StreamdError if nothing can be read or scored.
    """
    from streamd.evaluation.backtest import (
        COLUMNS,
        SHORT_LABEL_TITLES,
        SHORT_TITLES,
        backtest,
    )
    from streamd.evaluation.report.content import Asked, report_of
    from streamd.gpu import choose_device
    from streamd.training.learning_settings import LearningSettings

    torch.set_num_threads(settings.training.threads)
    with _log_of(settings, file, columns, progress) as (log, times):
        learning = LearningSettings.of(settings, choose_device(settings.device))
        result = backtest(learning, log, plan, progress)
        if result is None:
            raise _error_without_scores(log, settings, file)

    # Make the tables and the verdict for the terminal.
    caption = (
        f"{count_noun(result.num_events, 'event')} in {count_noun(len(result.windows), 'window')}, "
        "each scored before it was learned; known: over events with a destination known before"
    )
    notes = " ".join(filter(None, (result.nightly_note(), result.late_note())))
    note = notes and f". {notes}"
    title = f"streamd backtest of {file or settings.data_dir}"
    shown: list[Table | str] = [_table(COLUMNS, result.table(), title, caption + times + note)]
    novelty = result.novelty_table()
    shown.append(_table(novelty[0], novelty[1:]))
    if sets := result.set_table(SHORT_TITLES):
        shown.append(_table(sets[0], sets[1:]))
    if labels := result.label_table():
        caption = f"{count_noun(result.num_labels, 'label')}, each predicted before it was learned"
        shown.append(_table(labels[0], labels[1:], caption=caption))
    if sets := result.label_set_table(SHORT_LABEL_TITLES):
        shown.append(_table(sets[0], sets[1:]))
    report = report_of(result, title, asked or Asked())
    return [*shown, report.verdict], report


def backtest_grid(
    runs: "Sequence[Combination]",
    file: Path | None,
    columns: Columns,
    plan: "Plan",
    progress: Callable[[str, int, int, str], None],
    asked: "Asked | None" = None,
) -> "tuple[list[Table | str], Report]":
    """Backtest the live regime under several settings. Arguments as in `backtest_file`.

    Args: runs: settings, those in force first.
    Returns: the output to print, a table and the recommended settings; and the report.
    Raises: StreamdError if nothing can be read or scored.
    """
    from streamd.evaluation.grid import COLUMNS, run_grid
    from streamd.evaluation.report.content import Asked, grid_report_of

    settings = runs[0].settings
    with _log_of(settings, file, columns, progress) as (log, times):
        result = run_grid(runs, log, plan, progress)
        if result is None:
            raise _error_without_scores(log, settings, file)
    title = f"streamd backtest of {file or settings.data_dir}"
    caption = f"live, on the same {count_noun(len(result.runs[0].windows), 'window')}{times}"
    shown: list[Table | str] = [_table(COLUMNS, result.table(), title, caption), result.advice()]
    return shown, grid_report_of(result, title, asked or Asked())


def _error_without_scores(log: LogReader, settings: Settings, file: Path | None) -> StreamdError:
    """Make the error of a backtest that scored no event. file: of the events, None for the log of
    data_dir."""
    from streamd.evaluation.backtest import has_one_destination

    if has_one_destination(log):
        return StreamdError(
            f"No window could be scored: {ONE_DESTINATION}.",
            "check which column is the destination, or give events with several.",
        )
    count = log.num_edges - log.first_edge
    if not count:
        action = "check the command that wrote the file."
        if file is None:
            action = "start `streamd run`, or append history with `streamd import`."
        return StreamdError(
            f"No window could be scored: {file or settings.data_dir} has no events.", action
        )
    first_us, last_us = log.time_of(np.array([log.first_edge, log.num_edges - 1])).tolist()
    return StreamdError(
        f"No window could be scored: the {count_noun(count, 'event')} cover "
        f"{span((last_us - first_us) / 1e6)} and a window "
        f"{span(settings.windows.width_seconds)}; events of "
        "--initial are not scored.",
        "give more events, or a smaller windows.width_seconds or --initial; check the unit of the "
        "times if this is too short.",
    )


@contextmanager
def _log_of(
    settings: Settings,
    file: Path | None,
    columns: Columns,
    progress: Callable[[str, int, int, str], None],
) -> Iterator[tuple[LogReader, str]]:
    """Yield the log of data_dir, or a temporary one with a file's events; and text on the unit of
    the file's times and on rounded values."""
    if file is None:
        yield open_log(settings.data_dir), ""
        return

    # Import the file into a log, so that its events take the same path as live ones.
    with tempfile.TemporaryDirectory(prefix="streamd-backtest-") as folder:
        # The temporary log must not touch data_dir.
        own = settings.model_copy(update={"data_dir": Path(folder) / "log"})
        done = import_file(
            own,
            file,
            columns,
            lambda done, of: progress(f"reading {file}", done, of, "events"),
            is_kept=False,
        )
        notes = "; ".join(note for note in (done.times, done.rounded.words) if note)
        yield open_log(own.data_dir), f"; the whole file has {notes}"


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    # In a narrow terminal only the names wrap, not the numbers.
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
    Yields: lines for the user, each as soon as it is known.
    Raises: StreamdError, before training starts.
    """
    from streamd.gpu import choose_device
    from streamd.training.learning_settings import LearningSettings
    from streamd.training.static import StaticTraining

    # Fail now, instead of after hours of training.
    if folder is not None and folder.exists():
        raise SettingsError(f"{folder} exists already.", "name a new folder.")
    torch.set_num_threads(settings.training.threads)
    learning = LearningSettings.of(settings, choose_device(settings.device))
    training = StaticTraining(learning, open_log(settings.data_dir), progress)
    yield (
        f"{training.settings.name}, {count_noun(len(training.train), 'edge')} to learn, "
        f"{len(training.valid):,} to validate, {len(training.test):,} to test"
    )

    # Validation selects the weights; only those are tested.
    for epoch in training.run(epochs):
        learned = f"loss {epoch.loss:.4f}, " if epoch.number else "untrained, "
        yield (
            f"epoch {epoch.number}: {learned}validation MRR {epoch.valid['mrr']:.4f}, "
            f"{epoch.seconds:.1f} s"
        )
    test = training.test_best()
    yield (
        f"test MRR {test['mrr']:.4f}, AP {test['ap']:.4f}, "
        f"by the weights of epoch {training.best.number}"
    )
    if folder is not None:
        training.write(folder, test)
        yield f"weights: {folder}"


def ages_of_facts(text: str, chunk: int) -> tuple[int | None, ...]:
    """Parse `Plan.stale` from text such as "5,50,window": numbers of events, and None for a window.
    Raises: SettingsError."""
    ages: list[int | None] = []
    for part in (p.strip() for p in text.split(",") if p.strip()):
        if part != "window" and not (part.isdigit() and int(part) <= chunk):
            raise SettingsError(
                f"--stale holds {part!r}; ages are numbers of events up to model.memory_chunk "
                f"({chunk}), or window.",
                "give such ages, comma separated.",
            )
        ages.append(None if part == "window" else int(part))
    return tuple(ages)
