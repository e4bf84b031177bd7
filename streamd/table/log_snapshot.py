"""A log as of one commit, as tables."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from streamd.clock import parse_time_us, time_us
from streamd.errors import StreamdError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.scoring.stored_scores import ScoreSource, score_source
from streamd.settings.loading import ModelSettings, load_settings
from streamd.settings.sets import nearest_of
from streamd.table.arrow_columns import pick
from streamd.table.embedding_rows import EmbeddingRows
from streamd.table.event_tables import AllEvents, EventColumns, SetEvents
from streamd.table.fact_rows import FactRows
from streamd.table.keys import NodeKeys
from streamd.table.lease import Lease
from streamd.table.node_tables import Labels, LogNodes
from streamd.table.records import moves, newest_model, registry_of, versions, windows
from streamd.table.score_rows import ScoreRows

Time = int | str | datetime | None
"""A bound of time: microseconds since 1970, ISO 8601, or a datetime; without a zone it is UTC."""
EARLIEST_US, LATEST_US = -(2**63), 2**62
"""Bounds of event times, for a range without them; every event is before the second."""


class Table(Protocol):
    """A table of a snapshot.

    schema: Arrow schema of all its columns. default_columns: those that are read if none are named.
    """

    @property
    def schema(self) -> Any: ...

    @property
    def default_columns(self) -> Sequence[str]: ...

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield batches of rows, each as (number of rows, Arrow arrays by name). The times bound
        `time`, if the table has such a column: [since_us, until_us)."""


class LogSnapshot:
    """A log as of the commit at which it was opened. `streamd.open_log` opens one.

    Its tables are `pyarrow.RecordBatchReader`s: streams of record batches, which are read once.
    Events, labels and nodes that were deleted before the commit are left out. Several threads may
    read.

    It is a lease on the log's segments: retention keeps them until it is closed, or was not used
    for `lease_seconds`; then every further read raises LeaseError. Its batches stay valid, since
    they keep their memory mapped.
    """

    def __init__(self, log: LogReader, lease: Lease) -> None:
        """log: of the snapshot, which is never refreshed."""
        self._log = log
        self._lease = lease
        self._keys = NodeKeys(log)
        self._columns = EventColumns(log, self._keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the lease. Batches that were read stay valid."""
        self._lease.close()

    def check_open(self) -> None:
        """Renew the lease. Raises: LeaseError if it has run out or is closed."""
        self._lease.use()

    @property
    def has_lease(self) -> bool:
        """Whether retention knows of the snapshot. It does not if the directory cannot be written,
        as that of a backup; the files stay mapped all the same."""
        return self._lease.is_kept

    @property
    def commit(self) -> int:
        """Number of the newest commit in the snapshot."""
        return self._log.state.seq

    @property
    def first_event(self) -> int:
        """Id of the log's oldest event."""
        return self._log.first_edge

    @property
    def end_event(self) -> int:
        """One past the id of the log's newest event."""
        return self._log.num_edges

    @property
    def edge_sets(self) -> tuple[str, ...]:
        """Names of the edge sets."""
        return self._log.state.schema.edge_set_names

    def node_of(self, key: str) -> int | None:
        """The id of a node with a key of any type and node set, given as text; None if no node has
        it. It reads the file of the keys once, in bounded memory."""
        return self._keys.node_of(key)

    @property
    def times(self) -> tuple[int, int]:
        """Times of the oldest and the newest event in microseconds; 0 and 0 without any."""
        first, end = self.first_event, self.end_event
        if first == end:
            return 0, 0
        oldest, newest = self._log.time_of(np.array([first, end - 1])).tolist()
        return oldest, newest

    @cached_property
    def _set_events(self) -> dict[str, SetEvents]:
        return {
            name: SetEvents(self._columns, number) for number, name in enumerate(self.edge_sets)
        }

    def event_table(self, edge_set: str | None = None) -> Table:
        """The table of `events`. Raises: StreamdError for an unknown edge set."""
        if edge_set is None:
            # The only set's columns need no copy.
            if len(self.edge_sets) > 1:
                return AllEvents(self._columns)
            edge_set = self.edge_sets[0]
        if edge_set not in self._set_events:
            raise StreamdError(
                f"The log has no edge set {edge_set!r}{nearest_of(edge_set, self.edge_sets)}.",
                "name one of them.",
            )
        return self._set_events[edge_set]

    def events(
        self,
        edge_set: str | None = None,
        *,
        since: Time = None,
        until: Time = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """The events of an edge set, in order of time.

        Args:
            edge_set (str, optional): name of the set. Without it: the log's only set, or the events
                of all sets in event order.
            since (Time, optional): events at or after this time only.
            until (Time, optional): events before this time only.
            columns (Sequence of str, optional): names of columns. By default those that are read
                without a copy: `src`, `dst`, `time` and, if the set has any, `features`; of all
                sets also `event` and `edge_set`, and no features.

        Returns: a pyarrow.RecordBatchReader. Its batches have at most 131,072 rows. Those with
        `src`, `dst`, `time` and `features` of one set refer to the mapped files, and end at deleted
        rows.

        Raises: StreamdError for an unknown set or column; LeaseError.
        """
        bounds = _us(since, "since", EARLIEST_US), _us(until, "until", LATEST_US)
        name = f"events of {edge_set}" if edge_set else "events"
        return self.read(self.event_table(edge_set), name, columns, *bounds)

    def nodes(self, node_set: str | None = None, *, columns: Sequence[str] | None = None) -> Any:
        """The nodes by id, of one node set or of all, with the features in force. Deleted ones
        remain, without key and features.

        Returns: a pyarrow.RecordBatchReader. Raises: StreamdError for an unknown set or column;
        LeaseError.
        """
        # The only set's features have names.
        number = 0 if self._log.state.schema.num_node_sets == 1 else None
        if node_set is not None:
            number = self._node_set(node_set)
        return self.read(LogNodes(self._log, self._keys, number), "nodes", columns)

    def labels(
        self,
        *,
        since: Time = None,
        until: Time = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """The labels of nodes that are not deleted, in the order of the log, as a
        pyarrow.RecordBatchReader. since, until: as of `events`. Raises: StreamdError,
        LeaseError."""
        bounds = _us(since, "since", EARLIEST_US), _us(until, "until", LATEST_US)
        return self.read(Labels(self._log, self._keys), "labels", columns, *bounds)

    def facts(
        self,
        edge_set: str | None = None,
        *,
        since: Time = None,
        until: Time = None,
        columns: Sequence[str] | None = None,
        model: ModelSettings | None = None,
    ) -> Any:
        """The facts about the pair of each event strictly before it, as training and serving see
        them, to the bit: see docs/table.md. In a log of several sets they are those in the event's
        set, and with `all_` those in all sets together.

        Args:
            edge_set, since, until, columns: as of `events`.
            model (ModelSettings, optional): its half-lives and bound of pairs; those of the newest
                version by default, and without one the defaults.

        Returns: a pyarrow.RecordBatchReader. It raises FactsError if events before were dropped or
        overwritten and no stored facts have them.

        Raises: StreamdError for an unknown set or column; LeaseError.
        """
        bounds = _us(since, "since", EARLIEST_US), _us(until, "until", LATEST_US)
        return self.read(self.fact_table(edge_set, model), "facts", columns, *bounds)

    def fact_table(self, edge_set: str | None = None, model: ModelSettings | None = None) -> Table:
        """The table of `facts`. Raises: StreamdError for an unknown edge set."""
        number = None
        if edge_set is not None:
            self.event_table(edge_set)
            number = self.edge_sets.index(edge_set)
        return FactRows(self._log, model or newest_model(self._log.data_dir), number)

    def scores(
        self,
        file: str | Path | None = None,
        *,
        config: str | Path | None = None,
        since: Time = None,
        until: Time = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """The events that the scoring role scored, with their scores; see docs/table.md.

        Args:
            file (str or Path, optional): the JSON of one record of the score topic a line. Without
                it the topic `server.score_topic` of the settings is read up to its end.
            config (str or Path, optional): the settings file. Environment variables count too.
            since, until, columns: as of `events`.

        Returns: a pyarrow.RecordBatchReader. It raises KafkaError if the topic cannot be read.

        Raises: StreamdError for an unknown column; SettingsError; LeaseError.
        """
        bounds = _us(since, "since", EARLIEST_US), _us(until, "until", LATEST_US)
        settings, _ = load_settings(None if config is None else Path(config), {})
        source = score_source(settings, None if file is None else Path(file))
        return self.read(self.score_table(source), "scores", columns, *bounds)

    def score_table(self, source: ScoreSource) -> Table:
        """The table of `scores`."""
        return ScoreRows(self._columns, source)

    def windows(self) -> Any:
        """The finished windows with their scores, as a pyarrow.RecordBatchReader."""
        return self.read(windows(self._log.data_dir, self.commit), "windows")

    def versions(self) -> Any:
        """The versions of the model that are kept, as a pyarrow.RecordBatchReader."""
        return self.read(versions(self._log.data_dir, self.commit), "versions")

    def moves(self) -> Any:
        """The moves of the champion, as a pyarrow.RecordBatchReader."""
        return self.read(moves(self._log.data_dir, self.commit), "moves")

    def embeddings(
        self,
        version: str | None = None,
        node_set: str | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """The embeddings of nodes as of a version: by its weights and memory, from the events that
        it has learned. Deleted nodes are left out.

        Args:
            version (str, optional): its name; by default the champion.
            node_set (str, optional): name of the set; by default all.
            columns (Sequence of str, optional): names of columns; all by default.

        Returns: a pyarrow.RecordBatchReader. Raises: VersionError if there is no such version, or
        its memory is no longer kept; StreamdError if its model has no embeddings; LeaseError.
        """
        registry = registry_of(self._log.data_dir)
        move = None if registry is None else registry.shown()
        name = version or (move.champion if move else "")
        if registry is None or not name:
            raise VersionError("There is no version yet.", "let the trainer learn a window.")
        number = None if node_set is None else self._node_set(node_set)
        table = EmbeddingRows(self._log, self._keys, registry, name, number)
        return self.read(table, "embeddings", columns)

    def _node_set(self, name: str) -> int:
        """Number of a node set. Raises: StreamdError for an unknown one."""
        names = self._log.state.schema.node_set_names
        if name not in names:
            raise StreamdError(
                f"The log has no node set {name!r}{nearest_of(name, names)}.", "name one of them."
            )
        return names.index(name)

    def tables(self) -> dict[str, Table]:
        """All tables by name: `events`, `nodes`, `labels`, `windows`, `versions`, `moves`, and in a
        log of several sets `events_<edge set>` and `nodes_<node set>`."""
        schema = self._log.state.schema
        out: dict[str, Table] = {"events": self.event_table()}
        if len(self.edge_sets) > 1:
            out |= {f"events_{name}": self.event_table(name) for name in self.edge_sets}
        several = schema.num_node_sets > 1
        out["nodes"] = LogNodes(self._log, self._keys, None if several else 0)
        for number, name in enumerate(schema.node_set_names if several else ()):
            out[f"nodes_{name}"] = LogNodes(self._log, self._keys, number)
        out["labels"] = Labels(self._log, self._keys)
        for make in (windows, versions, moves):
            out[make.__name__] = make(self._log.data_dir, self.commit)
        return out

    def read(
        self,
        table: Table,
        name: str,
        columns: Sequence[str] | None = None,
        since_us: int = EARLIEST_US,
        until_us: int = LATEST_US,
    ) -> Any:
        """Some columns of a table as a pyarrow.RecordBatchReader. name: of the table, for errors.
        Raises: StreamdError, LeaseError."""
        self._lease.use()
        schema = pick(table.schema, columns or table.default_columns, name)

        def batches() -> Iterator[Any]:
            for count, arrays in table.batches(schema.names, since_us, until_us):
                # A reader that pauses too long must not read on.
                self._lease.use()
                yield record_batch(schema, count, arrays)

        return pa.RecordBatchReader.from_batches(schema, batches())


def record_batch(schema: Any, count: int, arrays: Mapping[str, Any]) -> Any:
    """A record batch of arrays by name, in the order of a schema. count: of its rows."""
    columns = [arrays[name] for name in schema.names]
    assert all(len(column) == count for column in columns)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _us(time: Time, name: str, default: int) -> int:
    """A bound of time in microseconds. Raises: SettingsError if text is no time."""
    if time is None:
        return default
    if isinstance(time, datetime):
        return time_us(time)
    return parse_time_us(time, name) if isinstance(time, str) else time
