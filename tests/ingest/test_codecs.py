"""What expands within the limit is expanded, the rest is refused."""

import gzip

import lz4.frame
import pytest
import snappy
import zstandard
from kafka.codec import snappy_encode

from streamd.ingest.kafka.decompression import expand

LIMIT = 100_000
ENCODE = {1: gzip.compress, 2: snappy_encode, 3: lz4.frame.compress, 4: zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("codec", ENCODE)
@pytest.mark.parametrize("size", [0, 1, 5_000, LIMIT])
def test_what_fits_is_expanded_as_it_was(codec, size):
    data = bytes(i % 251 for i in range(size))
    assert expand(codec, ENCODE[codec](data), LIMIT) == data


@pytest.mark.parametrize("codec", ENCODE)
def test_a_bomb_is_refused_without_being_expanded(codec):
    with pytest.raises(ValueError, match="max_batch_bytes"):
        expand(codec, ENCODE[codec](bytes(LIMIT + 1)), LIMIT)
    with pytest.raises(ValueError, match="max_batch_bytes"):
        expand(codec, ENCODE[codec](bytes(30_000_000)), LIMIT)


@pytest.mark.parametrize("codec", [*ENCODE, 7])
@pytest.mark.parametrize("data", [b"\xff" * 40, b"\x82SNAPPY\x00" + bytes(20)])
def test_noise_is_refused(codec, data):
    with pytest.raises(ValueError, match="cannot be read|max_batch_bytes"):
        expand(codec, data, LIMIT)


@pytest.mark.parametrize("codec", [1, 3])
def test_a_stream_that_is_cut_short_is_refused(codec):
    with pytest.raises(ValueError, match="cannot be read"):
        expand(codec, ENCODE[codec](bytes(range(256)) * 50)[:-20], LIMIT)


def test_plain_snappy_blocks_are_read_too():
    assert expand(2, snappy.compress(b"abc" * 50), LIMIT) == b"abc" * 50


def test_a_gzip_stream_of_many_members_is_one():
    assert expand(1, gzip.compress(b"ab") * 3_000, LIMIT) == b"ab" * 3_000
