"""TFRecord files in and out: plain or gzip, whole or in shards.

A record is its length (uint64), a checksum of the length, the data, a checksum of the data, all
little-endian. A checksum is CRC32C, rotated and with a constant added.
"""

import gzip
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streamd.errors import TFGNNError, TFRecordError
from streamd.storage import replace_durably
from streamd.tfgnn.records.kernels import (
    BAD_DATA,
    BAD_LENGTH,
    FOOTER,
    HEADER,
    TRUNCATED,
    scan_frames,
)
from streamd.tfgnn.records.shards import (
    find_files,
    is_compressed,
    make_folder_of,
    shard_paths,
)

BLOCK_BYTES = 8 << 20
"""Bytes read at once; more only for a record that is larger."""
MAX_RECORD_BYTES = 1 << 30
"""Most bytes of a record: protobuf takes 2 GiB at most, and a longer one is a damaged length."""
MIN_RECORD_BYTES = HEADER + FOOTER
MAX_RECORDS = 1 << 16
"""Most records of a block, so that small records do not make large tables of what is in them."""
GZIP_MAGIC = b"\x1f\x8b"
WORDS = {
    TRUNCATED: "the file ends within the record",
    BAD_LENGTH: "the checksum of its length is wrong",
    BAD_DATA: "the checksum of its data is wrong",
}
Array = NDArray[Any]


class Block:
    """Some records of a file. data: their bytes; record r is data[start_R[r]:end_R[r]].

    first: the number of the first one in its file, from 0.
    """

    __slots__ = ("data", "end_R", "first", "path", "start_R")

    def __init__(self, path: Path, data: bytes, start_R: Array, end_R: Array, first: int) -> None:
        self.path, self.data, self.first = path, data, first
        self.start_R, self.end_R = start_R, end_R

    def records(self) -> list[bytes]:
        """The bytes of each record."""
        spans = zip(self.start_R.tolist(), self.end_R.tolist(), strict=True)
        return [self.data[start:end] for start, end in spans]


def masked_crc(data: bytes) -> int:
    """The checksum of TFRecord files."""
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """A record as it stands in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc(length)),
            record,
            struct.pack("<I", masked_crc(record)),
        )
    )


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, a glob or base@N. Raises: as `read_blocks`."""
    for block in read_blocks(path):
        yield from block.records()


def read_blocks(
    path: Path, max_records: int = MAX_RECORDS, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Block]:
    """Yield the records of a file, a glob or base@N, some megabytes at once.

    Checks both checksums of each. max_records: of a block. max_bytes: of a record.
    Raises: TFRecordError
    naming file and byte where it is truncated or damaged, after what comes before was yielded (for
    gzip: the byte of the uncompressed data); TFGNNError where there is no file.
    """
    for file in find_files(path):
        yield from _blocks(file, max_records, max_bytes)


def _blocks(path: Path, max_records: int, max_bytes: int) -> Iterator[Block]:
    """Yield the records of one file. Raises: TFRecordError."""
    with ExitStack() as stack:
        try:
            source = stack.enter_context(open_file(path))
        except OSError as error:
            raise TFGNNError(f"{path} cannot be read: {error.strerror}.", "check it.") from None
        begun, number, data, want = 0, 0, b"", BLOCK_BYTES
        failure: Exception | None = None
        while True:
            more, failure = _read(source, want - len(data))
            data += more
            if not data and failure is None:
                return
            at_end = len(data) < want

            # The records of what was read; all that are whole.
            array = np.frombuffer(data, np.uint8)
            places = min(max_records, len(data) // MIN_RECORD_BYTES + 1)
            start_R, end_R = np.empty((2, places), np.int64)
            behind = 0
            while True:
                found, behind, why = scan_frames(array, behind, start_R, end_R)
                if found:
                    yield Block(path, data, start_R[:found].copy(), end_R[:found].copy(), number)
                    number += found
                if why in WORDS or behind == len(data):
                    break

            # A record that is not whole yet: read on, at most to its declared end.
            is_damaged = why in (BAD_LENGTH, BAD_DATA)
            rest = data[behind:]
            if rest and not at_end and not is_damaged:
                need = _record_size(rest)
                if need > max_bytes + MIN_RECORD_BYTES:
                    words = f"its length is {need:,}, and at most {max_bytes:,} bytes are read"
                    raise _damaged(path, begun + behind, number, words)
                # Twice what is there at most, so that a length alone takes no memory.
                want = max(BLOCK_BYTES, min(need, 2 * len(rest)), len(rest) + 1)
            else:
                if is_damaged or rest:
                    words = f"{WORDS[why]}" if failure is None or is_damaged else str(failure)
                    raise _damaged(path, begun + behind, number, words)
                if failure is not None:
                    raise _damaged(path, begun + behind, number, str(failure))
                want = BLOCK_BYTES
            begun += behind
            data = rest


def open_file(path: Path) -> BinaryIO:
    """Open a file, gzip by its first bytes and not by its name."""
    file = path.open("rb")
    is_gzip = file.read(2) == GZIP_MAGIC
    file.seek(0)
    if not is_gzip:
        return file
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def _read(source: BinaryIO, size: int) -> tuple[bytes, Exception | None]:
    """At most `size` bytes, fewer only at the end or before what cannot be read; and why."""
    pieces: list[bytes] = []
    while size > 0:
        try:
            # A part at a time: what comes before damaged gzip data is kept.
            piece = source.read(min(size, 1 << 16 if isinstance(source, gzip.GzipFile) else size))
        except (OSError, EOFError, zlib.error) as error:
            return b"".join(pieces), error
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces), None


def _record_size(rest: bytes) -> int:
    """The bytes that a record which begins here says it takes."""
    if len(rest) < HEADER:
        return MIN_RECORD_BYTES
    return int(struct.unpack_from("<Q", rest)[0]) + MIN_RECORD_BYTES


def _damaged(path: Path, byte: int, record: int, words: str) -> TFRecordError:
    return TFRecordError(
        f"{path} is damaged at byte {byte}, record {record}: {words}.",
        "copy or write the file again; the records before it were read.",
    )


class ShardFiles:
    """The files of a path or of base@N, open for writing. Owner: whoever opens it.

    A name that ends with .gz, or base.gz@N, is compressed. Each file has its name only once it is
    whole and synced: `with` renames all at its end, and none where an error ended it.
    """

    def __init__(self, path: Path) -> None:
        self._paths = shard_paths(path)
        self._stack = ExitStack()

    def __enter__(self) -> list[Any]:
        files = []
        with ExitStack() as stack:
            for path in self._paths:
                make_folder_of(path)
                scratch = stack.enter_context(replace_durably(path))
                try:
                    opened = _synced(scratch, is_compressed(path))
                except OSError as error:
                    raise TFGNNError(
                        f"{path} cannot be written: {error.strerror}.", "choose another path."
                    ) from None
                files.append(stack.enter_context(opened))
            self._stack = stack.pop_all()
        return files

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class _synced:
    """Opens a scratch file, which may be compressed, and syncs it.

    An error removes it.
    """

    def __init__(self, scratch: Path, is_gzip: bool) -> None:
        self._scratch = scratch
        self._raw = scratch.open("wb", buffering=1 << 20)
        self._is_gzip = is_gzip
        # Without a name and time in it the same records give the same bytes.
        self._file: Any = gzip.GzipFile("", "wb", 6, self._raw, mtime=0) if is_gzip else self._raw

    def __enter__(self) -> Any:
        return self._file

    def __exit__(self, *error: Any) -> None:
        if self._is_gzip:
            self._file.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        if error[0] is not None:
            self._scratch.unlink()


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write records to a file or to the shards of base@N in turn. Returns: how many.

    Each file has its name only once all are whole.
    """
    count = 0
    with ShardFiles(path) as files:
        for record in records:
            files[count % len(files)].write(frame(record))
            count += 1
    return count
