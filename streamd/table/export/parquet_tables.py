"""A folder of Parquet files, partitioned as Hive does: `events/edge_set=<set>/day=<day>/*.parquet`
and `deletes/*.parquet`. Its manifest names the files that count."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamd.errors import StoreError, StreamdError
from streamd.events import Int64
from streamd.storage import SCRATCH
from streamd.store.objects import Store
from streamd.table.export.export_commit import ExportCommit, ExportPosition
from streamd.table.export.set_tables import DAY, EDGE_SET

FORMAT = 1
"""Format of the manifest. It rises when older releases could no longer continue a table."""
FOLDER = "_streamd"
MANIFEST = f"{FOLDER}/manifest.json"
"""Readers of Hive's partitions skip names that begin with an underscore."""
MANIFEST_BYTES = 1 << 28
"""Most bytes of a manifest: a million files have 150 MB."""
FILE_BYTES = 1 << 32
EVENTS, DELETED = "events", "deletes"
ENDING = ".parquet"
COLUMNS = "_common_metadata"
"""Name of a file with the columns of a set alone, as Parquet's writers call it."""
COMPRESSION = "zstd"
"""A third smaller than snappy for ids and times, and as quick to read."""


class DataFile(msgspec.Struct, frozen=True):
    """A file of the table. path: in its folder. first_event, end_event: range of event ids; of
    deletes the ids are numbers of rows of that table."""

    path: str
    rows: int
    num_bytes: int
    first_event: int
    end_event: int

    @property
    def edge_set(self) -> str:
        """The name in its path; "" of deletes."""
        return self.path.partition(f"{EDGE_SET}=")[2].partition("/")[0]


class TableManifest(msgspec.Struct, frozen=True):
    """The state of the table. position: in the log. columns: names by edge set. events, deletes:
    its files. pending: files that a commit under way may have written; they do not count."""

    format: int
    position: ExportPosition
    columns: dict[str, list[str]] = {}
    events: list[DataFile] = []
    deletes: list[DataFile] = []
    pending: list[str] = []

    @property
    def files(self) -> list[DataFile]:
        return self.events + self.deletes


class ParquetTables:
    """Appends commits as files to a folder, or under a URL. Owner: the exporter.

    A commit is three steps, each durable before the next:

    1. Name its files as pending in the manifest.
    2. Write the files, each whole or not at all.
    3. Name them as files of the table, with the position in the log.

    A kill before 3 leaves files that do not count; the next start removes them before it writes the
    rows again. So no row is ever in two files.
    """

    def __init__(self, store: Store, *, is_reader: bool = False) -> None:
        """Read the manifest, and remove the files of a commit that was killed. is_reader: change
        nothing, since a commit may be under way. Raises: StreamdError if other files are there."""
        self._store = store
        sizes = store.sizes(FOLDER if is_reader else "")
        self._manifest = self._read(sizes)
        if is_reader:
            return
        named = {file.path for file in self._manifest.files} if self._manifest else set()
        pending = set(self._manifest.pending) if self._manifest else set()
        left = [name for name in sizes if name in pending - named or name.endswith(SCRATCH)]
        self._check_files(set(sizes) - set(left), named)
        store.remove(left)

    @property
    def where(self) -> str:
        """The folder or URL, without credentials."""
        return self._store.shown

    @property
    def position(self) -> ExportPosition | None:
        """As in `ExportTables`."""
        return self._manifest.position if self._manifest else None

    def read_columns(self, columns: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield (edge set, Arrow table) of some columns of each file of events; not of one that was
        removed since. Raises: StoreError."""
        for file in self._present(self._manifest.events if self._manifest else []):
            yield file.edge_set, self._read_file(file, columns)

    def _present(self, files: list[DataFile]) -> list[DataFile]:
        """The files that were not removed since."""
        sizes = self._store.sizes("") if files else {}
        return [file for file in files if file.path in sizes]

    def _read_file(self, file: DataFile, columns: list[str]) -> Any:
        """Some columns of a file, as an Arrow table. Raises: StoreError."""
        data = self._store.get(file.path, FILE_BYTES)
        try:
            # The folders of its path are not columns of the file.
            return pq.ParquetFile(pa.BufferReader(data)).read(columns)
        except pa.ArrowException as error:
            raise StoreError(
                f"{file.path} in {self.where} is not the file that was exported: {error}.",
                "restore it, or export into a new folder.",
            ) from None

    def deletes(self) -> tuple[Int64, Int64]:
        """As in `ExportTables`."""
        files = self._present(self._manifest.deletes if self._manifest else [])
        tables = [self._read_file(file, ["event", "node"]) for file in files]
        events, nodes = (
            [table[name].drop_null().to_numpy() for table in tables] for name in ("event", "node")
        )
        empty = [np.zeros(0, np.int64)]
        return np.concatenate(empty + events), np.concatenate(empty + nodes)

    def append(self, commit: ExportCommit) -> None:
        """As in `ExportTables`. Raises: StoreError; StreamdError if another process exports to
        here."""
        before = self._manifest
        files = self._files_of(commit)
        if before is None:
            start = ExportPosition(commit.position.start_event, commit.position.start_event)
            before = TableManifest(FORMAT, start)

        # 1. Name the files as pending.
        pending = msgspec.structs.replace(before, pending=list(files))
        self._write(pending)

        # 2. Write the files, and the columns of sets that have new ones.
        written = {path: self._put(path, table) for path, table in files.items()}
        columns = {name: list(schema.names) for name, schema in commit.schemas.items()}
        for name, schema in commit.schemas.items():
            if before.columns.get(name) != columns[name]:
                self._put_columns(name, schema)

        # 3. Name them as files of the table.
        events = [
            DataFile(path, files[path].num_rows, size, commit.first_event, commit.end_event)
            for path, size in written.items()
            if path.startswith(EVENTS)
        ]
        row = _end_of(before.deletes)
        deletes = [
            DataFile(path, files[path].num_rows, size, row, row + files[path].num_rows)
            for path, size in written.items()
            if path.startswith(DELETED)
        ]
        self._write(
            TableManifest(
                format=FORMAT,
                position=commit.position,
                columns=columns,
                events=before.events + events,
                deletes=before.deletes + deletes,
            )
        )

    def _files_of(self, commit: ExportCommit) -> dict[str, Any]:
        """The Arrow tables of a commit by the paths of their files."""
        name = f"{commit.first_event:020d}-{commit.end_event:020d}{ENDING}"
        files = {
            f"{EVENTS}/{EDGE_SET}={edge_set}/{DAY}={commit.day}/{name}": table
            for edge_set, table in commit.sets.items()
        }
        # Most commits have no deletes.
        if commit.deletes.num_rows:
            row = _end_of(self._manifest.deletes if self._manifest else [])
            files[f"{DELETED}/{row:020d}-{row + commit.deletes.num_rows:020d}{ENDING}"] = (
                commit.deletes
            )
        return files

    def _put(self, path: str, table: Any) -> int:
        """Write a file. Returns: its size in bytes."""
        # A store takes an object as a whole, so a commit is bounded in rows.
        out = pa.BufferOutputStream()
        pq.write_table(table, out, compression=COMPRESSION)
        data = out.getvalue().to_pybytes()
        self._store.put(path, data)
        return len(data)

    def _put_columns(self, edge_set: str, schema: Any) -> None:
        out = pa.BufferOutputStream()
        pq.write_metadata(schema, out)
        path = f"{EVENTS}/{EDGE_SET}={edge_set}/{COLUMNS}"
        self._store.put(path, out.getvalue().to_pybytes())

    def _write(self, manifest: TableManifest) -> None:
        """Write the manifest, if it is still the one that this process wrote last. Raises:
        StreamdError."""
        found = self._read(self._store.sizes(FOLDER))
        if found != self._manifest:
            raise StreamdError(
                f"Another process exports to {self.where} too.", "stop one of the two."
            )
        self._store.put(MANIFEST, msgspec.json.encode(manifest))
        self._manifest = manifest

    def _read(self, sizes: Mapping[str, int]) -> TableManifest | None:
        """The manifest; None if there is none. Raises: StoreError, StreamdError."""
        if MANIFEST not in sizes:
            return None
        data = self._store.get(MANIFEST, MANIFEST_BYTES)
        try:
            # A newer format may have other fields.
            number = msgspec.json.decode(data)["format"]
            if number == FORMAT:
                return msgspec.json.decode(data, type=TableManifest)
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            raise StreamdError(
                f"{MANIFEST} in {self.where} is damaged: {error}.",
                "restore it, or export into a new folder.",
            ) from None
        raise StreamdError(
            f"{self.where} is an export of format {number}; this release knows {FORMAT}.",
            "use the release that wrote it, or export into a new folder.",
        )

    def _check_files(self, names: Iterable[str], named: set[str]) -> None:
        """Check that no file is there that would be read as part of the table. Raises:
        StreamdError."""
        # A new table begins in an empty folder. Later a text may be added, but no rows.
        if self._manifest is None:
            foreign = sorted(names)
        else:
            foreign = sorted(
                name
                for name in names
                if name not in named
                and name.startswith((f"{EVENTS}/", f"{DELETED}/"))
                and name.endswith(ENDING)
            )
        if foreign:
            raise StreamdError(
                f"{self.where} holds files that are not of this export, such as {foreign[0]}.",
                "move them away, or name a new folder.",
            )


def _end_of(files: list[DataFile]) -> int:
    """One past the last number of some files."""
    return files[-1].end_event if files else 0
