"""Searches for keys by their type: in the key table, in dead letters, and in the key tables of a
store. Only this can prove that an integer key is gone: any file may contain its bytes by chance."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from streamd.eventlog.journal.journal import NOTHING
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.key_search import find_keys
from streamd.eventlog.layout import KEYS
from streamd.events import Key
from streamd.ingest.dead_letters.purge import FILES, FOLDER
from streamd.ingest.dead_letters.search import LetterProof
from streamd.storage import DISK
from streamd.store import manifests
from streamd.store.deleted_keys import Found
from streamd.store.file_set import StoredFile
from streamd.store.objects import Store
from streamd.store.restore import write_file


class TypedSearch:
    """Searches for keys, one location after the other. Owner: the command that runs it.

    nodes, letters, tables: numbers of rows of the key table, of dead letters, and of key tables in
    a store that were searched so far.
    """

    def __init__(self, numbers: Mapping[Key, int], prefixes: frozenset[str] = frozenset()) -> None:
        """numbers: key -> its number in `Found`. prefixes: those that sources add to keys."""
        self._numbers = numbers
        self._prefixes = prefixes
        self.nodes = self.letters = self.tables = 0

    def in_directory(self, data_dir: Path) -> Iterator[Found]:
        """Search the key table and the dead letters of a data directory."""
        # Search committed rows only, since later bytes are overwritten.
        tail = JournalTail.open(data_dir)
        if tail is not None:
            self.nodes += tail.state.num_nodes
            num_bytes = tail.state.files.get(KEYS, NOTHING).num_bytes
            yield from self._in_table(data_dir, num_bytes, KEYS)
        for name in FILES:
            path = data_dir / FOLDER / name
            if path.exists():
                yield from self._in_letters(path, f"{FOLDER}/{name}")

    def _in_table(self, folder: Path, num_bytes: int, where: str) -> Iterator[Found]:
        for row in find_keys(folder, num_bytes, self._numbers):
            yield Found(where, row.at, self._numbers[row.key])

    def _in_letters(self, path: Path, where: str) -> Iterator[Found]:
        of_all = LetterProof(self._numbers, self._prefixes)
        at = 0
        with path.open("rb") as file:
            for line in file:
                self.letters += 1
                # Parse the line only if it has the bytes of any key.
                for key, number in self._numbers.items() if of_all.is_in(line) else ():
                    if LetterProof([key], self._prefixes).is_in(line):
                        yield Found(where, at, number)
                at += len(line)

    def in_store(self, store: Store) -> Iterator[Found]:
        """Search the key table of each manifest of a store. Raises: StoreError."""
        # Manifests with the same table name the same objects.
        searched: set[tuple[str, ...]] = set()
        for name, manifest in manifests.read_all(store):
            for file in manifest.files:
                objects = tuple(piece.object for piece in file.pieces)
                if file.path == KEYS and objects not in searched:
                    searched.add(objects)
                    yield from self._in_stored_table(
                        store, file, f"{KEYS} of {name} in {store.shown}"
                    )

    def _in_stored_table(self, store: Store, file: StoredFile, where: str) -> Iterator[Found]:
        self.tables += 1
        with tempfile.TemporaryDirectory(prefix="streamd-keys-") as folder:
            write_file(store, Path(folder) / KEYS, file, False, lambda _: None, DISK)
            yield from self._in_table(Path(folder), file.size, where)
