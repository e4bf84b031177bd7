"""Decompression of Kafka batches up to a limit of bytes."""

import gzip
import io
import zlib

import lz4.frame
import snappy
import zstandard

ZSTD_WINDOW = 1 << 27
"""Maximum window of a zstd frame in bytes: the largest that zstd accepts without --long."""
XERIAL_MAGIC = b"\x82SNAPPY\x00"
"""Start of the framing that Java producers put around snappy blocks."""


def expand(codec: int, data: bytes, limit: int) -> bytes:
    """Decompress a batch. codec: Kafka's number (1 gzip, 2 snappy, 3 lz4, 4 zstd).

    Raises: ValueError if it expands to more than `limit` bytes, is truncated or is not of that
    codec.
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
    # One byte more than the limit is enough to detect that it is exceeded.
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
    # A batch may have several frames, so read to its end or until the limit is exceeded.
    parts = []
    size = 0
    while size <= limit and (part := reader.read(min(1 << 20, limit + 1 - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _snappy(data: bytes, limit: int) -> bytes:
    if data[:8] != XERIAL_MAGIC:
        return _snappy_block(data, limit)
    # After a header of 16 bytes come blocks, each preceded by its length.
    out = []
    start = 16
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        block = data[start + 4 : start + 4 + size]
        if not 0 < size == len(block):
            raise EOFError("a snappy block is cut short")
        out.append(_snappy_block(block, limit))
        limit -= len(out[-1])
        start += 4 + size
    return b"".join(out)


def _snappy_block(data: bytes, limit: int) -> bytes:
    """Decompress one block, which begins with its expanded size as a varint."""
    size = 0
    for i in range(5):
        size |= (data[i] & 0x7F) << 7 * i
        if data[i] < 0x80:
            break
    if size > limit:
        raise ValueError(
            f"the batch expands to more than ingest.max_batch_bytes, {limit} of which are left"
        )
    out: bytes = snappy.decompress(data)
    return out
