"""Imports a TGUF, CSV, NDJSON, Parquet or Arrow file into a log.

Everything that can be checked is checked before the log is created.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streamd.clock import Clock, SystemClock
from streamd.decode.rounding import Rounded
from streamd.errors import SettingsError
from streamd.eventlog.odd_keys import OddKeys, odd_keys_in_log
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.reader import TGUFFile, open_tguf
from streamd.events import Schema
from streamd.exchange.event_files import EventFile
from streamd.exchange.load import Loader, open_loader
from streamd.exchange.produce import Outgoing
from streamd.exchange.published import FEATURES_HINT, find_data_set
from streamd.exchange.row_form import RowForm
from streamd.exchange.sourced import resolve_source, rows_for_source
from streamd.exchange.tables import Columns, read_events, resolved
from streamd.exchange.times import Misfit, Times
from streamd.exchange.warm_start.import_mark import ImportMark
from streamd.exchange.warm_start.warm_start import JoinedTopics, Then, check_new, join_topics
from streamd.settings.loading import Settings, schema_of

IMPORT_ROWS = 65_536
"""Rows of a TGUF file that are appended at a time, which bounds memory; a commit may contain
fewer."""


@dataclass(frozen=True)
class Imported:
    """The outcome of an import.

    times: their range and unit, as text. rounded: feature values that were rounded. odd_keys: of
    the newest edges of the import. doubts: sentences on cells that may be wrong, and on rows that
    were left out.
    """

    num_events: int
    times: str
    rounded: Rounded
    odd_keys: OddKeys
    doubts: tuple[str, ...] = ()
    joined: JoinedTopics | None = None


def import_file(
    settings: Settings,
    path: Path,
    columns: Columns,
    progress: Callable[[int, int], None],
    is_kept: bool = True,
    then: Then | None = None,
) -> Imported:
    """Append the events of a file to the log.

    1. Check all that can be checked: after step 2 a wrong width would need a new data directory.
    2. Open and lock the log, or create it, and append in parts. An error keeps committed parts.
    3. With `then`, commit the positions at which ingest continues. Then each commit of step 2 has
       the position in the file, at which the same import continues after a kill.

    Numeric times of a table are in the columns' unit, those of a TGUF file in microseconds.

    Args: progress: called with (events so far, events in all). is_kept: whether the log outlives
    the command, so that an error has to name the number of events that were appended before it.
    Raises: StreamdError naming the first row that does not fit; LockedError while ingest runs.
    """
    # A TGUF file has widths in its header; the rows of a table are read as JSON events.
    file = _open_if_tguf(path)
    settings, columns = resolve_source(settings, columns)
    published = find_data_set(columns.published) if columns.published else None
    mark = (then, _mark_of(settings, path, columns, then)) if then else None
    schema, clock = schema_of(settings), SystemClock()

    # 1. Check before the log is created, because its widths never change.
    times = _times_of(settings, columns, file is not None, clock)
    topic = columns.source
    columns = resolved(columns, settings)
    edge_set = schema.edge_set_names.index(columns.edge_set) if columns.edge_set else 0
    doubts: list[str] = []
    if file is not None:
        _check_tguf(file, columns, schema, times)
    else:
        table = EventFile(path, columns.form)
        events = _events_of_table(settings, table, columns, times, doubts.append)

    # 2. Open the log and append. An error includes the number of events before it.
    unit = None if topic else times.find_other_unit
    column = "" if topic or file is not None else columns.time
    of_rows = topic, edge_set, None, unit, column
    form = RowForm.of(settings, None if file is not None else table, columns)
    with open_loader(settings, clock, str(path), *of_rows, is_kept, form) as loader:
        joined = None
        if file is not None:
            _import_tguf(file, loader, progress)
        else:
            joined = _import_table(settings, loader, events, table, mark, progress)
        _check_begins(loader, path, is_kept and mark is None)
    if topic and loader.last_us >= 0:
        times.extend(loader.first_us, loader.last_us, f"the source of {topic} defines")
    # A log without features may be intended, so this is only a doubt.
    if published is not None and published.features and not schema.edge_feature_dim:
        doubts.append(f"not taken as features: {', '.join(published.features)}; {FEATURES_HINT}")
    doubts += joined.doubts if joined else ()
    odd = _odd_keys(settings, loader.first_edge)
    return Imported(loader.num_events, times.summary(), loader.rounded, odd, tuple(doubts), joined)


def _check_begins(loader: Loader, path: Path, is_kept: bool) -> None:
    """Refuse to begin a log that is kept with a file without events; a later part of a history may
    be empty. Raises: SettingsError."""
    if is_kept and not loader.num_events and not loader.log.num_nodes:
        raise SettingsError(f"{path} has no events.", "check the command that wrote the file.")


def _open_if_tguf(path: Path) -> TGUFFile | None:
    """Open a file if it is one of TGUF. Raises: SettingsError if there is no such file."""
    if not path.exists():
        raise SettingsError(f"{path} is not a file.", "check the path.")
    return open_tguf(path) if path.suffix.lower() == ".tguf" else None


def _mark_of(settings: Settings, path: Path, columns: Columns, then: Then) -> ImportMark:
    """Check that topics can continue a file. Returns: its mark. Raises: SettingsError,
    KafkaError."""
    # Its labels and features have rows of their own, so one number is no position.
    if path.suffix.lower() == ".tguf":
        raise SettingsError(
            f"{path} is a TGUF file, after which no topic can continue.",
            "import it without --then, or write it as a table.",
        )
    mark = ImportMark.of(path, repr(columns))
    then.check(settings)
    return mark


def _import_table(
    settings: Settings,
    loader: Loader,
    events: Iterator[Outgoing],
    table: EventFile,
    mark: tuple[Then, ImportMark] | None,
    progress: Callable[[int, int], None],
) -> JoinedTopics | None:
    """Append a table's rows. mark: topics that continue the table: then append only the rows that
    are not in the log yet, and commit the positions of the topics. Raises: StreamdError."""
    total = table.count_rows()
    if mark is None:
        loader.rows(events, lambda done: progress(done, total))
        return None

    # Continue after the last commit, and then join the topics.
    then, file = mark
    start = file.resume(loader.log.progress)
    check_new(loader.log, then)
    total = max(0, total - start.offset)
    loader.rows(events, lambda done: progress(done, total), start, file.at)
    return join_topics(settings, loader.log, file, then, SystemClock().now_us())


def _times_of(settings: Settings, columns: Columns, is_tguf: bool, clock: Clock) -> Times:
    """Make the reader of a file's times."""
    max_ahead = settings.ingest.max_ahead_seconds
    # The unit of a TGUF file is fixed.
    if is_tguf:
        return Times("us", "us", max_ahead, clock, option="")
    return Times(columns.time_unit or settings.stream.time_unit, "us", max_ahead, clock)


def _events_of_table(
    settings: Settings,
    table: EventFile,
    columns: Columns,
    times: Times,
    doubt: Callable[[str], None],
) -> Iterator[Outgoing]:
    """The events of a table, or its rows for the source that maps them. Raises: SettingsError."""
    if not columns.source:
        return read_events(table, columns, times, doubt)
    rows = rows_for_source(settings, columns, table, settings.stream.time_unit, doubt)
    return (Outgoing(b"", value, None, number) for number, value in rows)


def _odd_keys(settings: Settings, first_edge: int) -> OddKeys:
    """Find odd keys among the log's edges from the event `first_edge` on."""
    log = LogReader.open(settings.data_dir)
    assert log is not None
    prefixes = {prefix for source in settings.sources for prefix in source.prefixes()}
    return odd_keys_in_log(log, first_edge, prefixes)


def _check_tguf(file: TGUFFile, columns: Columns, schema: Schema, times: Times) -> None:
    """Refuse a TGUF file that the log cannot take. columns: the user's options. Raises:
    SettingsError, StreamdError."""
    if replace(columns, edge_set="", time_unit="") != Columns():
        raise SettingsError(
            f"{file.path} is a TGUF file, whose columns have no names.",
            "leave out --source and the names of columns.",
        )
    _check_set(file, columns.edge_set, schema)
    number = schema.edge_set_names.index(columns.edge_set) if columns.edge_set else 0
    _check_widths(file, schema, number)
    _check_times(file, times)


def _check_set(file: TGUFFile, edge_set: str, schema: Schema) -> None:
    """Refuse a file if the set of its edges, node features or labels is unknown. Raises:
    SettingsError."""
    if not edge_set and schema.num_edge_sets > 1:
        raise SettingsError(
            f"{file.path} does not name its edge set.",
            f"name it with --edge-set: one of {', '.join(schema.edge_set_names)}.",
        )
    number = schema.edge_set_names.index(edge_set) if edge_set else 0
    source, target = schema.ends_of(number)
    if source != target and (len(file.node_feat) or file.num_labels):
        raise SettingsError(
            f"{file.path} has node features or labels, but does not name their node set.",
            "import them from a table, with node_set.",
        )


def _check_widths(file: TGUFFile, schema: Schema, edge_set: int) -> None:
    """Refuse a file if its widths differ from the log's. Raises: SettingsError."""
    h = file.header
    of_edges = schema.edge_columns(edge_set)
    of_nodes = schema.node_columns(schema.ends_of(edge_set)[0])
    # A file without node features or labels fits any stream.
    for have, width, name in (
        (h.msg_dim, of_edges.stop - of_edges.start, "edge_feature_dim"),
        (h.node_feat_dim, of_nodes.stop - of_nodes.start, "node_feature_dim"),
        (h.label_dim, schema.label_dim, "label_dim"),
    ):
        if have not in (0, width) or (have == 0 and name == "edge_feature_dim" and width):
            if schema.edge_sets and name != "label_dim":
                kind = name.partition("_")[0]
                raise SettingsError(
                    f"{file.path} has {kind} features of width {have}, "
                    f"those of graph.{kind}_sets are {width} wide.",
                    "name another set, or declare other features and use a new data_dir.",
                )
            raise SettingsError(
                f"{file.path} has width {have}, but stream.{name} is {width}.",
                f"set STREAMD_STREAM__{name.upper()}={have}, and use a new data_dir.",
            )


def _check_times(file: TGUFFile, times: Times) -> None:
    """Refuse a time that is out of range or ahead of the clock. Raises: SettingsError."""
    for name, column in (("time", file.time), ("label_time", file.label_time)):
        if not len(column):
            continue
        # Times ascend, so the first and the last bound all others.
        first, last = int(column[0]), int(column[-1])
        try:
            times.check(first, first)
            times.check(last, last)
        except Misfit as misfit:
            raise misfit.at(f"{file.path} {name}") from None
        times.extend(first, last, "microseconds")


def _import_tguf(file: TGUFFile, loader: Loader, progress: Callable[[int, int], None]) -> None:
    """Append node features first, then edges and labels in order of time."""
    features = file.node_feat
    total = len(features) + file.num_edges + file.num_labels
    # Features are in force from the start.
    for a in range(0, len(features), IMPORT_ROWS):
        part = features[a : a + IMPORT_ROWS]
        loader.append(loader.node_features(np.arange(a, a + len(part)), part))

    # Append each part of the edges with the labels up to the next part; the last takes the rest.
    labels_done = 0
    times = file.time
    for a in range(0, max(file.num_edges, 1), IMPORT_ROWS):
        b = min(a + IMPORT_ROWS, file.num_edges)
        until = (
            int(np.searchsorted(file.label_time, times[b]))
            if b < file.num_edges
            else file.num_labels
        )
        part_L = slice(labels_done, until)
        loader.append(
            loader.edges(file.src[a:b], file.dst[a:b], times[a:b], file.msg[a:b]),
            loader.labels(
                file.label_n_id[part_L], file.label_time[part_L], file.label_target[part_L]
            ),
        )
        labels_done = until
        progress(loader.num_events, total)
