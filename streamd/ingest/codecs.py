"""Compressed Kafka batches, expanded within a limit."""

import gzip
import io
import zlib

import lz4.frame
import snappy
import zstandard

ZSTD_WINDOW = 1 << 27
XERIAL_MAGIC = b"\x82SNAPPY\x00"


def expand(codec: int, data: bytes, limit: int) -> bytes:
    """Decompress a batch. codec: Kafka's number (1 gzip, 2 snappy, 3 lz4, 4 zstd).

    Raises: ValueError where it is larger than `limit` bytes, is cut short or is not of that codec.
    """
    try:
        out = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}[codec](data, limit)
    except (
        zlib.error,
        zstandard.ZstdError,
        snappy.UncompressError,
        RuntimeError,
        OSError,
        EOFError,
        IndexError,
        KeyError,
    ) as error:
        raise ValueError(f"the compressed batch cannot be read: {error!r}") from None
    if len(out) > limit:
        raise ValueError(f"the batch expands to more than ingest.max_batch_bytes, {limit}")
    return out


def _gzip(data: bytes, limit: int) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(data)).read(limit + 1)


def _lz4(data: bytes, limit: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    out: bytes = frame.decompress(data, limit + 1)
    if not frame.eof and len(out) <= limit:
        raise EOFError("the lz4 frame is cut short")
    return out


def _zstd(data: bytes, limit: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(
        data, read_across_frames=True
    )
    parts = []
    size = 0
    while size <= limit and (part := reader.read(min(1 << 20, limit + 1 - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _snappy(data: bytes, limit: int) -> bytes:
    if data[:8] != XERIAL_MAGIC:
        return _snappy_block(data, limit)
    out = []
    at = 16
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + size]
        if not 0 < size == len(block):
            raise EOFError("a snappy block is cut short")
        out.append(_snappy_block(block, limit))
        limit -= len(out[-1])
        at += 4 + size
    return b"".join(out)


def _snappy_block(data: bytes, limit: int) -> bytes:
    """One block; its first bytes say, as a varint, how large it becomes."""
    size = 0
    for place in range(5):
        size |= (data[place] & 0x7F) << 7 * place
        if data[place] < 0x80:
            break
    if size > limit:
        raise ValueError(
            f"the batch expands to more than ingest.max_batch_bytes, {limit} of which are left"
        )
    out: bytes = snappy.decompress(data)
    return out
