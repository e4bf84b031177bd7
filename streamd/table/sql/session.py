"""A connection to DuckDB that reads the tables of a snapshot and nothing else."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from streamd.errors import QueryError, StreamdError
from streamd.scoring.stored_scores import NO_SCORES, ScoreSource
from streamd.settings.loading import ModelSettings
from streamd.table.log_snapshot import LogSnapshot
from streamd.table.sql.key_hints import id_hints, text_hint

BEFORE = {
    # A query over its memory fails, instead of writing to a folder.
    "temp_directory": "",
    # No code is loaded that is not in DuckDB's own package.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    # SQL must not see the variables of this program.
    "python_enable_replacements": "false",
}
"""Settings of a new connection."""
LAST = (
    "CREATE MACRO facts(of_set) AS TABLE SELECT * FROM facts WHERE edge_set = of_set",
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""Facts of an edge set as a function, and settings after which neither files nor settings
can be reached."""
ROWS_OF_BATCH = 65_536
"""Rows of a result that are in memory at a time."""


class SqlSession:
    """Answers statements over one snapshot. Owner: one thread."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        max_memory_bytes: int,
        model: ModelSettings | None = None,
        scores: ScoreSource = NO_SCORES,
    ) -> None:
        """max_memory_bytes: bound of DuckDB's own memory. model: of facts, as of
        `LogSnapshot.facts`. scores: of the view `scores`, read if a statement names it. Raises:
        StreamdError if DuckDB is not installed."""
        try:
            import duckdb
        except ImportError:
            raise StreamdError(
                "`streamd sql` needs DuckDB.", "pip install 'streamd-gnn[sql]'."
            ) from None
        # Imported here: it needs pyarrow.
        from streamd.table.sql.datasets import TableDataset

        self._duckdb = duckdb
        self._snapshot = snapshot
        self._errors: list[StreamdError] = []
        """Errors of scans since the last statement."""
        self._text = ""
        """The last statement."""
        limit = {"memory_limit": f"{max(max_memory_bytes // 1024, 1)}KiB"}
        self._connection = duckdb.connect(":memory:", config=BEFORE | limit)
        times = snapshot.times
        self.views: dict[str, list[str]] = {}
        """Names of the columns of each view, for completion."""
        tables = snapshot.tables() | {
            "facts": snapshot.fact_table(None, model),
            "scores": snapshot.score_table(scores),
        }
        for name, table in tables.items():
            dataset = TableDataset(snapshot, table, name, times, self._errors.append)
            self._connection.register(name, dataset)
            self.views[name] = table.schema.names
        for statement in LAST:
            self._connection.execute(statement)

    def query(self, text: str) -> Any:
        """The result of one SELECT as a pyarrow.RecordBatchReader. Raises: QueryError for another
        statement, for several, or if it fails; LeaseError, also while the result is read."""
        self._errors.clear()
        self._text = text
        try:
            statements = self._connection.extract_statements(text)
        except self._duckdb.Error as error:
            raise self._cause(error) from None
        # Only one SELECT is allowed.
        if len(statements) != 1:
            raise QueryError(
                f"{len(statements)} statements were given.", "give one SELECT at a time."
            )
        if statements[0].type != self._duckdb.StatementType.SELECT:
            kind = str(statements[0].type).rpartition(".")[2]
            raise QueryError(
                f"{kind} is not allowed: SQL only reads here.",
                "give a SELECT; --format and > write its result to a file.",
            )
        # Its batches are computed as they are read.
        try:
            relation = self._connection.sql(statements[0].query)
            reader = relation.to_arrow_reader(ROWS_OF_BATCH)
        except self._duckdb.Error as error:
            raise self._cause(error) from None
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def _batches(self, reader: Any) -> Iterator[Any]:
        """The batches of a result, with DuckDB's errors as streamd's."""
        try:
            yield from reader
        except (self._duckdb.Error, OSError) as error:
            raise self._cause(error) from None

    def _cause(self, error: Exception) -> StreamdError:
        """The error of a scan that failed, or DuckDB's own error as one line. Raises: LeaseError
        if the lease has run out."""
        if self._errors:
            return self._errors.pop()
        self._snapshot.check_open()
        text = " ".join(str(error).split())
        if isinstance(error, self._duckdb.OutOfMemoryException) or "Out of Memory" in text:
            return QueryError(
                "The query needs more memory than it may take.",
                "select less, or raise sql.max_memory_bytes.",
            )
        is_text = isinstance(error, self._duckdb.ConversionException)
        hint = text_hint(self._text) if is_text else ""
        return QueryError(f"{text.rstrip('.')}.", f"{hint or 'correct the statement'}.")

    def hints(self) -> list[str]:
        """Sentences for the user on the last statement, which may not ask what was meant."""
        return id_hints(self._text, self._snapshot.node_of)

    def close(self) -> None:
        self._connection.close()
