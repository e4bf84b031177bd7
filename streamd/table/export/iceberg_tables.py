"""Iceberg tables in a folder with a catalog in SQLite: `streamd.events_<edge set>`, partitioned by
day, and `streamd.deletes`."""

import contextlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.errors import StoreError, StreamdError
from streamd.events import Int64
from streamd.table.export.export_commit import ExportCommit, ExportPosition
from streamd.table.export.iceberg_sweep import unnamed_files
from streamd.table.export.new_deletes import DELETES
from streamd.table.export.set_tables import DAY

NAMESPACE = "streamd"
CATALOG = "catalog.db"
EVENTS = "events_"
"""Beginning of the names of tables of events."""
DELETED = "deletes"
POSITION = "streamd-position"
"""Property of a table with its position, set in the transaction that appends the rows. Others may
expire or add snapshots, but keep properties."""
COMMIT = "streamd-commit"
"""Key of a snapshot's summary: the commit of the log, as of which its rows were read."""


class IcebergTables:
    """Appends commits as snapshots. Owner: the exporter.

    Each table is appended to in a transaction of its own, with its own position in the log; that of
    `deletes`, which may be without rows, is the last. After a kill between two of them, the next
    start reads the events from the position of `deletes` on, and leaves out those that a table has
    already. So no event is in a table twice. A killed append leaves files that no snapshot names;
    `sweep` removes them.
    """

    def __init__(self, folder: Path) -> None:
        """Open the catalog; `append` creates it. Raises: StreamdError without pyiceberg, or if the
        folder holds other files; StoreError."""
        try:
            from pyiceberg.catalog.sql import SqlCatalog
        except ImportError:
            raise StreamdError(
                "Iceberg needs pyiceberg.", "pip install 'streamd-gnn[iceberg]'."
            ) from None
        self._folder = folder
        catalog = folder / CATALOG
        if not catalog.exists() and folder.is_dir() and (other := sorted(folder.iterdir())):
            raise StreamdError(
                f"{folder} holds files that are not of this export, such as {other[0].name}.",
                "move them away, or name a new folder.",
            )
        with self._errors("opened"):
            folder.mkdir(parents=True, exist_ok=True)
            self._catalog = SqlCatalog(
                NAMESPACE, uri=f"sqlite:///{catalog}", warehouse=folder.as_uri()
            )
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
        deletes = self._load(DELETED)
        self._position = None if deletes is None else _position_of(deletes)

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def position(self) -> ExportPosition | None:
        """As in `ExportTables`."""
        return self._position

    def deletes(self) -> tuple[Int64, Int64]:
        """As in `ExportTables`."""
        table = self._load(DELETED)
        if table is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        with self._errors("read"):
            rows = table.scan(selected_fields=("event", "node")).to_arrow()
        return rows["event"].drop_null().to_numpy(), rows["node"].drop_null().to_numpy()

    def read_columns(self, columns: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield (edge set, Arrow record batch) of some columns of all events. Raises:
        StoreError."""
        with self._errors("read"):
            for _, name in self._catalog.list_tables(NAMESPACE):
                if name.startswith(EVENTS):
                    scan = self._catalog.load_table((NAMESPACE, name)).scan(
                        selected_fields=tuple(columns)
                    )
                    for batch in scan.to_arrow_batch_reader():
                        yield name.removeprefix(EVENTS), batch

    def sweep(self) -> int:
        """Remove old files that no snapshot names. Returns: their number. Raises: StoreError."""
        swept = 0
        with self._errors("swept"):
            for _, name in self._catalog.list_tables(NAMESPACE):
                for file in unnamed_files(self._catalog.load_table((NAMESPACE, name))):
                    file.unlink(missing_ok=True)
                    swept += 1
        return swept

    def append(self, commit: ExportCommit) -> None:
        """As in `ExportTables`. Raises: StoreError; StreamdError if another process exports to
        here."""
        # A commit of deletes alone has no day, and no rows that need one.
        day = pa.scalar(date.fromisoformat(commit.day or "1970-01-01"), pa.date32())
        for name, schema in commit.schemas.items():
            table = self._load(EVENTS + name)
            if table is None:
                # Sets without events have a table too.
                table = self._create(EVENTS + name, schema.append(pa.field(DAY, pa.date32())))
            before = _position_of(table)
            # Leave out rows that the table got before a kill.
            rows = commit.sets.get(name)
            if rows is not None and before is not None:
                rows = rows.filter(pc.greater_equal(rows["event"], before.next_event))
            if rows is not None and rows.num_rows:
                days = pa.repeat(day, rows.num_rows)
                self._append(table, rows.append_column(DAY, days), commit)

        # The last table ends the commit.
        table = self._load(DELETED) or self._create(DELETED, DELETES)
        self._append(table, commit.deletes, commit)
        self._position = commit.position

    def _append(self, table: Any, rows: Any, commit: ExportCommit) -> None:
        """Append rows to a table, with the position after the commit and new columns, in one
        transaction."""
        position = msgspec.json.encode(commit.position).decode()
        with self._errors("appended to"), table.transaction() as transaction:
            # New features of the set.
            if not set(rows.schema.names) <= set(table.schema().column_names):
                with transaction.update_schema() as update:
                    update.union_by_name(rows.schema)
            transaction.append(rows, {COMMIT: str(commit.position.commit), POSITION: position})
            transaction.set_properties({POSITION: position})

    def _create(self, name: str, schema: Any) -> Any:
        with self._errors("created"):
            self._catalog.create_table((NAMESPACE, name), schema)
        return self._load(name)

    def _load(self, name: str) -> Any:
        """A table at its newest snapshot; None if it is not there."""
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.transforms import IdentityTransform

        with self._errors("read"):
            try:
                table = self._catalog.load_table((NAMESPACE, name))
            except NoSuchTableError:
                return None
            # A process may have been killed after it created the table.
            if name != DELETED and not table.spec().fields:
                with table.update_spec() as update:
                    update.add_field(DAY, IdentityTransform(), DAY)
            return table

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise errors of pyiceberg, of the catalog and of files as ours."""
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except CommitFailedException:
            raise StreamdError(
                f"Another process writes to the tables in {self.where} too.",
                "stop it, or run the command again after it.",
            ) from None
        except (OSError, ValueError, SQLAlchemyError) as error:
            # Some of these errors have a page of text.
            reason = str(error).splitlines()[0]
            raise StoreError(
                f"The Iceberg tables in {self.where} cannot be {what}: {reason}.",
                "check the folder's space and rights, then run the command again.",
            ) from None


def _position_of(table: Any) -> ExportPosition | None:
    """The position of a table; None before its first append."""
    text = table.properties.get(POSITION)
    return None if text is None else msgspec.json.decode(text, type=ExportPosition)
