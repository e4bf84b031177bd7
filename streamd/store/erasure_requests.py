"""Stores requests to erase nodes, one file each, so that they survive restarts.

`DATA/erasures/open/<id>` has the keys, which the proof needs. A request that has ended moves to
`DATA/erasures/ended/<id>`, without the keys.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from streamd.errors import CorruptionError
from streamd.events import Key, SetKey, split_key
from streamd.storage import DISK, remove_scratch, write_durably

FOLDER = "erasures"
OPEN = "open"
ENDED = "ended"
MAX_OPEN = 1000
"""Maximum number of open requests: each is checked once a second."""
KEPT_ENDED = 1000
"""Number of newest ended requests that are kept, some hundred bytes each."""

ErasureState = Literal["deleting", "compacting", "proving", "done", "found", "failed"]
ENDS = ("done", "found", "failed")
"""The states of a request that has ended. Before these come deleting, compacting and proving, in
this order."""


class SentNode(msgspec.Struct, frozen=True):
    """The delete of a node, as acknowledged by Kafka."""

    node: int
    topic: str
    partition: int
    offset: int


class ErasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to erase nodes.

    asked_at, compacted_at, ended_at: wall time in seconds, 0 until then. num_keys: number of keys.
    keys: (node set, key) of each node, empty once the request has ended. topic: for the deletes, ""
    for the first topic of streamd's own events. rows: (index of a key, node id) of the nodes in the
    log, None until they were looked up. num_unknown: number of keys without a row. sent: the
    deletes in Kafka. event, seq: event id and commit of the newest delete, once the log has all of
    them. compaction: id of the request to compact, in the models topic. waits_for: the reason why
    the request waits or failed. found: (number of a key from 1, location) of each remaining key.
    proof: the files, objects and topics that were searched.
    """

    id: str
    asked_at: float
    num_keys: int
    keys: list[tuple[int, str | int]]
    topic: str = ""
    state: ErasureState = "deleting"
    waits_for: str = ""
    rows: list[tuple[int, int]] | None = None
    num_unknown: int | None = None
    sent: list[SentNode] = []
    event: int = -1
    seq: int = 0
    compaction: str = ""
    compacted_at: float = 0
    found: list[tuple[int, str]] = []
    proof: str = ""
    ended_at: float = 0

    @property
    def typed_keys(self) -> list[Key]:
        """The keys as the log has them."""
        return [SetKey(number, key) if number else key for number, key in self.keys]


class ErasureRequests:
    """Reads and writes the requests of a data directory. Several processes may use it: servers add
    requests, and one process executes them."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / FOLDER

    def add(self, keys: Sequence[Key], topic: str) -> ErasureRequest:
        """Add a request durably."""
        made = ErasureRequest(
            id=uuid.uuid4().hex,
            asked_at=time.time(),
            num_keys=len(keys),
            keys=[split_key(key) for key in keys],
            topic=topic,
        )
        self.write(made)
        return made

    def write(self, request: ErasureRequest) -> None:
        """Write a request durably. A request that has ended is written without its keys."""
        has_ended = request.state in ENDS
        if has_ended:
            request = msgspec.structs.replace(request, keys=[], rows=[], sent=[])
        path = self.folder / (ENDED if has_ended else OPEN) / request.id
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, msgspec.json.encode(request))
        if has_ended:
            DISK.unlink(self.folder / OPEN / request.id)
            DISK.sync_folder(self.folder)
            self._drop_old()

    def read(self, request: str) -> ErasureRequest | None:
        """Read a request by its id; None if there is none here. Raises: CorruptionError."""
        # Read the ended requests last, since an open one may move there meanwhile.
        for part in (OPEN, ENDED):
            if (found := _read(self.folder / part / request)) is not None:
                return found
        return None

    @property
    def num_open(self) -> int:
        """Number of open requests."""
        return len(self._ids())

    def open(self) -> list[ErasureRequest]:
        """Read the open requests, oldest first. Raises: CorruptionError."""
        found = (_read(self.folder / OPEN / name) for name in self._ids())
        return sorted((one for one in found if one is not None), key=lambda one: one.asked_at)

    def _ids(self) -> list[str]:
        folder = self.folder / OPEN
        # Files that are still being written begin with a dot.
        return [p.name for p in folder.glob("[0-9a-f]*")] if folder.exists() else []

    def sweep(self) -> None:
        """Remove the scratch files of killed writes: they may contain keys."""
        if (self.folder / OPEN).exists():
            remove_scratch(self.folder / OPEN)

    def _drop_old(self) -> None:
        ended = [(path.stat().st_mtime, path) for path in (self.folder / ENDED).glob("[0-9a-f]*")]
        for _, path in sorted(ended)[:-KEPT_ENDED]:
            path.unlink(missing_ok=True)


def _read(path: Path) -> ErasureRequest | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ErasureRequest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptionError(
            f"{path} is damaged: {error}.", "remove it, and ask again to erase these nodes."
        ) from None
