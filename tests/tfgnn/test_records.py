"""TFRecord files: shards, gzip, checksums, and every place at which one may be damaged."""

import gzip
import random
import struct
import tracemalloc

import pytest
from crc32c import crc32c

from streamd.errors import TFGNNError, TFRecordError
from streamd.tfgnn.records import records
from streamd.tfgnn.records.records import (
    frame,
    masked_crc,
    read_blocks,
    read_records,
    write_records,
)
from streamd.tfgnn.records.shards import find_files, shard_paths, table_format
from tests.tfgnn import reference

SOME = [b"", b"a", b"\x00" * 7, bytes(range(256)) * 3, b"last"]


def read_until_damaged(path):
    found = []
    with pytest.raises(TFRecordError) as error:
        for record in read_records(path):
            found.append(record)
    return found, str(error.value)


@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz", "deep/er/x.tfrecord@1", "x.tfrecord@3", "x.tfrecord@7"])
def test_what_is_written_is_read(tmp_path, name):
    assert write_records(tmp_path / name, SOME) == len(SOME)
    assert sorted(read_records(tmp_path / name)) == sorted(SOME)
    files = sorted(p.name for p in (tmp_path / name).parent.iterdir() if p.is_file())
    assert files == sorted(p.name for p in shard_paths(tmp_path / name))


def test_records_go_to_shards_in_turn(tmp_path):
    write_records(tmp_path / "x.tfrecord@2", SOME)
    assert list(read_records(tmp_path / "x.tfrecord-00000-of-00002")) == SOME[::2]
    assert list(read_records(tmp_path / "x.tfrecord-?????-of-00002")) == SOME[::2] + SOME[1::2]


def test_a_frame_has_the_checksums_of_the_format():
    data = frame(b"abc")
    crc = crc32c(b"abc")
    masked = ((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF
    assert struct.unpack("<Q", data[:8]) == (3,) and struct.unpack("<I", data[-4:]) == (masked,) == (masked_crc(b"abc"),)


@pytest.mark.parametrize("name", ["x.tfrecord.gz", "x.tfrecord.gz@2"])
def test_a_name_with_gz_is_compressed(tmp_path, name):
    write_records(tmp_path / name, SOME)
    assert all(gzip.decompress(p.read_bytes()) for p in tmp_path.iterdir())
    assert sorted(read_records(tmp_path / name)) == sorted(SOME)


def test_a_file_may_be_called_like_a_glob(tmp_path):
    write_records(tmp_path / "x[1].tfrecord", SOME)
    assert list(read_records(tmp_path / "x[1].tfrecord")) == SOME


def test_gzip_is_known_by_its_bytes(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(gzip.compress(b"".join(map(frame, SOME))))
    assert list(read_records(tmp_path / "x.tfrecord")) == SOME


def test_a_file_cut_at_any_byte_gives_what_is_whole_and_names_the_byte(tmp_path):
    path = tmp_path / "x.tfrecord"
    data = b"".join(frame(b"x" * n) for n in (0, 1, 9, 30))
    for size in range(len(data)):
        path.write_bytes(data[:size])
        whole, at = reference.frames(data[:size])
        if at is None:
            assert list(read_records(path)) == whole
            continue
        assert read_until_damaged(path)[0] == whole
        assert f"{path} is damaged at byte {at}, record {len(whole)}: the file ends" in read_until_damaged(path)[1]


def test_a_flip_of_any_bit_is_noticed(tmp_path):
    path = tmp_path / "x.tfrecord"
    data = b"".join(frame(b"xyz" * n) for n in (1, 4))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found, message = read_until_damaged(path)
        assert found == reference.frames(bytes(flipped))[0]
        record = 0 if bit < 8 * len(frame(b"xyz")) else 1
        assert f"byte {record * len(frame(b'xyz'))}, record {record}: the checksum" in message


@pytest.mark.parametrize("cut", [1, 5, 9, 30])
def test_damaged_gzip_gives_what_is_whole(tmp_path, cut):
    path = tmp_path / "x.tfrecord.gz"
    # Random bytes, which are not compressed: the end of the file holds the end of the records.
    big = [random.Random(i).randbytes(50_000) for i in range(10)]
    data = gzip.compress(b"".join(map(frame, big)))
    path.write_bytes(data[:-cut])
    found, message = read_until_damaged(path)
    assert found == big[: len(found)] and len(found) >= 8
    assert "end-of-stream" in message


@pytest.mark.parametrize("length", [2**20, 2**31, 2**40, 2**62, 2**63, 2**64 - 1])
def test_a_length_that_lies_takes_no_memory(tmp_path, monkeypatch, length):
    monkeypatch.setattr(records, "BLOCK_BYTES", 1 << 16)
    path = tmp_path / "x.tfrecord"
    head = struct.pack("<Q", length)
    path.write_bytes(frame(b"one") + head + struct.pack("<I", masked_crc(head)) + b"x" * 100)
    list(read_blocks_until_damaged(path))
    tracemalloc.start()
    try:
        assert read_until_damaged(path)[0] == [b"one"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def read_blocks_until_damaged(path):
    try:
        yield from read_blocks(path)
    except TFRecordError:
        return


def test_records_larger_than_a_block_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 50)
    wanted = [bytes([i]) * (i * 37 % 400) for i in range(60)]
    for name in ("x.tfrecord", "x.tfrecord.gz"):
        write_records(tmp_path / name, wanted)
        assert list(read_records(tmp_path / name)) == wanted
    path = tmp_path / "x.tfrecord"
    damaged = bytearray(path.read_bytes())
    at = sum(16 + len(r) for r in wanted[:41])
    damaged[at + 14] ^= 1
    path.write_bytes(damaged)
    found, message = read_until_damaged(path)
    assert found == wanted[:41] and f"byte {at}, record 41: the checksum of its data" in message


def test_blocks_number_their_records(tmp_path):
    write_records(tmp_path / "x.tfrecord", SOME)
    blocks = list(read_blocks(tmp_path / "x.tfrecord", max_records=2))
    assert [(b.first, b.records()) for b in blocks] == [(0, SOME[:2]), (2, SOME[2:4]), (4, SOME[4:])]


def test_a_writer_that_fails_leaves_no_file(tmp_path):
    def fails():
        yield b"x"
        raise ValueError("in the middle")

    (tmp_path / "x.tfrecord-00000-of-00002").write_bytes(b"before")
    with pytest.raises(ValueError, match="in the middle"):
        write_records(tmp_path / "x.tfrecord@2", fails())
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.tfrecord-00000-of-00002", b"before")]


def test_a_missing_shard_is_named(tmp_path):
    write_records(tmp_path / "x.tfrecord@3", SOME)
    (tmp_path / "x.tfrecord-00001-of-00003").unlink()
    with pytest.raises(TFGNNError, match="00001-of-00003 is not a file"):
        list(read_records(tmp_path / "x.tfrecord@3"))
    with pytest.raises(TFGNNError, match="no file matches"):
        find_files(tmp_path / "y-?????-of-00003")


@pytest.mark.parametrize("glob", ["x.csv-?????-of-00003", "x.csv-*", "*", "x.csv-0000[12]-of-*"])
def test_a_glob_of_shards_reads_all_of_them_or_none(tmp_path, glob):
    files = [tmp_path / f"x.csv-0000{i}-of-00003" for i in range(3)]
    for file in files[1:]:
        file.touch()
    with pytest.raises(TFGNNError, match=r"does not match all 3 shards of 'x\.csv': number 0 is missing"):
        find_files(tmp_path / glob)
    assert find_files(files[1]) == [files[1]], "a file that is named is read alone"
    files[0].touch()
    (tmp_path / f".{files[0].name}").touch()
    if "[" not in glob:
        assert find_files(tmp_path / glob) == files


@pytest.mark.parametrize(("names", "words"), [
    (["x-00000-of-00001", "x-00000-of-00002", "x-00001-of-00002"], "shards of 1 and of 2 files of 'x'"),
    (["x-00000-of-00001", "x-00000-of-00001.gz"], "matches 2 files, and 'x' has 1 shards"),
    (["x-00000-of-00002.csv", "x-00002-of-00002.csv"], r"all 2 shards of 'x\.csv': number 1 is missing"),
    (["x-00000-of-00002", "x-00001-of-00002", "x-00002-of-00002"], "matches 3 files, and 'x' has 2"),
    (["x-00000-of-00001", "y-00000-of-00002"], "all 2 shards of 'y'")])
def test_a_glob_of_shards_of_two_runs_or_twice_the_same_is_refused(tmp_path, names, words):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(TFGNNError, match=words):
        find_files(tmp_path / "*-of-*")
    for count in ("0", "100000", "9" * 40):
        with pytest.raises(TFGNNError, match="shards"):
            shard_paths(tmp_path / f"x.tfrecord@{count}")


@pytest.mark.parametrize(("name", "want"), [
    ("a.csv", "csv"), ("a-csv@3", "csv"), ("a.csv-00000-of-00002", "csv"), ("a.csv.gz", "csv"), ("a.tfrecord", "tfrecord"),
    ("a_tfrecords@5", "tfrecord"), ("x.tfrecords-00000-of-00002", "tfrecord"), ("tfr", "tfrecord"), ("my-tfrecords/foo.csv", "csv"),
    ("a.parquet", None), ("csv", None), ("a.CSV", None)])
def test_the_name_of_a_file_tells_its_format(tmp_path, name, want):
    if want is None:
        with pytest.raises(TFGNNError, match="does not contain the format"):
            table_format(tmp_path / name)
    else:
        assert table_format(tmp_path / name) == want
