"""Reads and writes TFRecord files: plain or gzip, single or in shards.

A record has its length (uint64), a checksum of the length, the data, and a checksum of the data,
all little-endian. The checksum is CRC32C, rotated, plus a constant.
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
"""Bytes per read; more only for a larger record."""
MAX_RECORD_BYTES = 1 << 30
"""Maximum size of a record: protobuf allows 2 GiB, and a larger number is most likely a damaged
length."""
MIN_RECORD_BYTES = HEADER + FOOTER
MAX_RECORDS = 1 << 16
"""Maximum number of records of a block, which bounds the arrays about them if records are small."""
GZIP_MAGIC = b"\x1f\x8b"
WORDS = {
    TRUNCATED: "the file ends within the record",
    BAD_LENGTH: "the checksum of its length is wrong",
    BAD_DATA: "the checksum of its data is wrong",
}
Array = NDArray[Any]


class Block:
    """Some records of a file. data: bytes of the file; record r is data[start_R[r]:end_R[r]].

    first: number of the first record in its file, from 0.
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
    """A record with its length and checksums, as in a file."""
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
    """Yield the records of a file, a glob or base@N, some megabytes at a time.

    Checks both checksums of each record. max_records: of a block. max_bytes: of a record.
    Raises: TFRecordError with file and byte (for gzip, of the uncompressed data) if a file is
    truncated or damaged, after the records before were yielded; TFGNNError if there is no file.
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

            # Yield all complete records of the data.
            array = np.frombuffer(data, np.uint8)
            room = min(max_records, len(data) // MIN_RECORD_BYTES + 1)
            start_R, end_R = np.empty((2, room), np.int64)
            behind = 0
            while True:
                found, behind, why = scan_frames(array, behind, start_R, end_R)
                if found:
                    yield Block(path, data, start_R[:found].copy(), end_R[:found].copy(), number)
                    number += found
                if why in WORDS or behind == len(data):
                    break

            # If a record is not complete yet, read more, at most up to its declared end.
            is_damaged = why in (BAD_LENGTH, BAD_DATA)
            rest = data[behind:]
            if rest and not at_end and not is_damaged:
                need = _record_size(rest)
                if need > max_bytes + MIN_RECORD_BYTES:
                    words = f"its length is {need:,}, and at most {max_bytes:,} bytes are read"
                    raise _damage_error(path, begun + behind, number, words)
                # Read at most twice the bytes of the record so far, so that a damaged length
                # allocates little.
                want = max(BLOCK_BYTES, min(need, 2 * len(rest)), len(rest) + 1)
            else:
                if is_damaged or rest:
                    words = f"{WORDS[why]}" if failure is None or is_damaged else str(failure)
                    raise _damage_error(path, begun + behind, number, words)
                if failure is not None:
                    raise _damage_error(path, begun + behind, number, str(failure))
                want = BLOCK_BYTES
            begun += behind
            data = rest


def open_file(path: Path) -> BinaryIO:
    """Open a file; it is gzip by its first bytes, not by its name."""
    file = path.open("rb")
    is_gzip = file.read(2) == GZIP_MAGIC
    file.seek(0)
    if not is_gzip:
        return file
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def _read(source: BinaryIO, size: int) -> tuple[bytes, Exception | None]:
    """Read `size` bytes, fewer only at the end or before an error. Returns: the bytes, and the
    error or None."""
    pieces: list[bytes] = []
    while size > 0:
        try:
            # In small parts, so that the data before damaged gzip data is kept.
            piece = source.read(min(size, 1 << 16 if isinstance(source, gzip.GzipFile) else size))
        except (OSError, EOFError, zlib.error) as error:
            return b"".join(pieces), error
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces), None


def _record_size(rest: bytes) -> int:
    """The size of the record that starts here, by its length field."""
    if len(rest) < HEADER:
        return MIN_RECORD_BYTES
    return int(struct.unpack_from("<Q", rest)[0]) + MIN_RECORD_BYTES


def _damage_error(path: Path, byte: int, record: int, words: str) -> TFRecordError:
    return TFRecordError(
        f"{path} is damaged at byte {byte}, record {record}: {words}.",
        "copy or write the file again; the records before it were read.",
    )


class ShardFiles:
    """The file of a path, or the files of base@N, open for writing. Owner: its creator.

    Names that end with .gz, and base.gz@N, are compressed. At the end of `with`, each file is
    flushed and synced, then renamed to its final name. After an error no file is renamed.
    """

    def __init__(self, path: Path) -> None:
        self._paths = shard_paths(path)
        self._stack = ExitStack()

    def __enter__(self) -> list[Any]:
        files = []
        # An error with one file closes and removes those that are open.
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
    """Opens a scratch file, with compression if it is gzip, and syncs it at the end.

    An error removes it.
    """

    def __init__(self, scratch: Path, is_gzip: bool) -> None:
        self._scratch = scratch
        self._raw = scratch.open("wb", buffering=1 << 20)
        self._is_gzip = is_gzip
        # Without name and time in the header, equal records give equal bytes.
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
    """Write records to a file, or in turn to the shards of base@N. Returns: the number of records.

    No file gets its name before all records are written.
    """
    count = 0
    with ShardFiles(path) as files:
        for record in records:
            # In turn, so that shards have equal sizes.
            files[count % len(files)].write(frame(record))
            count += 1
    return count
