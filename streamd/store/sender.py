"""Sends the missing bytes of files to a store, as objects."""

from collections.abc import Callable
from pathlib import Path

from streamd.store.file_set import StoredFile
from streamd.store.leases import StoreLease
from streamd.store.objects import Store
from streamd.store.ranges import PendingFile, objects_of


class FileSender:
    """Sends the objects that the store lacks, each once. Owner: one upload. objects, num_bytes:
    number and bytes of the objects sent so far."""

    def __init__(self, store: Store, lease: StoreLease, known: dict[str, int]) -> None:
        """lease: of the upload; it is renewed. known: name of each object in the store -> its
        bytes; kept up to date."""
        self._store = store
        self._lease = lease
        self._known = known
        self.objects = 0
        self.num_bytes = 0

    def send(
        self,
        folder: Path,
        wanted: PendingFile,
        read: Callable[[int], None] = lambda num_bytes: None,
    ) -> StoredFile:
        """Send the missing bytes of a file. read: called with the bytes of each piece.

        Raises: StoreError, OSError; CorruptionError if the file is too short.
        """
        pieces = list(wanted.kept)
        for piece, data in objects_of(folder, wanted):
            # Compare sizes too, since a killed upload may leave an incomplete object.
            if self._known.get(piece.object) != piece.size:
                self._store.put(piece.object, data)
                self._known[piece.object] = piece.size
                self.objects += 1
                self.num_bytes += piece.size
            pieces.append(piece)
            read(piece.size)
            self._lease.renew()
        return StoredFile(wanted.path, wanted.size, pieces, wanted.revision)
