import json
import struct
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import CapacityError, TGUFError
from streamd.eventlog.tguf import TGUFSchema, TGUFWriter, open_tguf
from streamd.eventlog.tguf.format import FIELDS, PAGE

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("edges_msgs", "nodefeat_labels_splits")


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text()), GOLDEN / f"{name}.tguf"


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_files_read_as_the_reference_reads_them(name):
    said, path = golden(name)
    file = open_tguf(path)
    for field, value in said["header"].items():
        assert getattr(file.header, field) == value, field
    for column, values in said["arrays"].items():
        np.testing.assert_array_equal(getattr(file, column), np.array(values, getattr(file, column).dtype), column)


@pytest.mark.parametrize("name", NAMES)
def test_writing_the_same_rows_gives_the_reference_bytes(name, tmp_path):
    said, path = golden(name)
    s, a = said["schema"], said["arrays"]
    schema = TGUFSchema(s["edge_capacity"], s["msg_dim"], s.get("label_capacity", 0), s.get("label_dim", 0),
                        s.get("node_feat_capacity", 0), s.get("node_feat_dim", 0), s.get("val_start", 0),
                        s.get("test_start", 0))
    with TGUFWriter.create(tmp_path / "x.tguf", schema) as writer:
        at = 0
        for n in said["append_batches"]:
            writer.append_edges(*(np.array(a[c][at:at + n], np.int64) for c in ("src", "dst", "time")),
                                np.array(a["msg"][at:at + n], np.float32))
            at += n
        if "node_feat" in a:
            rows = np.array(a["node_feat"], np.float32)
            ids = np.flatnonzero(rows.any(1))
            writer.append_node_features(ids, rows[ids])
        if "label_time" in a:
            writer.append_labels(np.array(a["label_n_id"], np.int64), np.array(a["label_time"], np.int64),
                                 np.array(a["label_target"], np.float32))
        writer.commit()
    assert (tmp_path / "x.tguf").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_label_events_and_splits_are_those_of_the_reference(name):
    said, path = golden(name)
    file, store = open_tguf(path), said["reference_store"]
    assert {k: list(v) for k, v in file.splits.items()} == store["splits"]
    events = file.label_events
    assert len(events) == len(store["label_events"])
    for i, event in enumerate(store["label_events"]):
        rows = slice(events.start_R[i], events.end_R[i])
        assert file.label_n_id[rows].tolist() == event["n_id"] and events.edge_cutoff_R[i] == event["edge_cutoff"]
        np.testing.assert_array_equal(file.label_target[rows], np.array(event["target"], np.float32))


def test_a_label_at_an_edges_time_sees_only_edges_strictly_before(tmp_path):
    with TGUFWriter.create(tmp_path / "x.tguf", TGUFSchema(10, 2, 5, 1, val_start=3, test_start=7)) as writer:
        writer.append_edges(*edges(10))
        writer.append_labels(np.arange(5), np.array([20, 30, 30, 70, 900]), np.ones((5, 1), np.float32))
        writer.commit()
    file = open_tguf(tmp_path / "x.tguf")
    assert file.label_events.edge_cutoff_R.tolist() == [2, 3, 7, 10] and file.label_events.end_R.tolist() == [1, 3, 4, 5]
    assert file.splits == {"train": (0, 3), "val": (3, 7), "test": (7, 10), "train_label": (0, 1), "val_label": (1, 2),
                           "test_label": (2, 4)}


@pytest.mark.parametrize("cuts", [(10,), (3, 4, 3), (1, 8, 1)])
def test_aligned_and_compact_negatives_give_the_same_bytes(tmp_path, cuts):
    negatives = np.arange(20).reshape(10, 2)
    schema = TGUFSchema(10, 2, val_start=4, negatives_per_edge=2, negatives_start=4)
    written = []
    for aligned in (True, False):
        path = tmp_path / f"{aligned}.tguf"
        with TGUFWriter.create(path, schema) as writer:
            at = 0
            for n in cuts:
                rows = negatives[at if aligned else max(at, 4): at + n]
                writer.append_edges(*edges(n, start=at), rows)
                at += n
            writer.commit()
        written.append(path.read_bytes())
    file = open_tguf(tmp_path / "True.tguf")
    assert written[0] == written[1]
    np.testing.assert_array_equal(file.neg_dst, negatives[4:])
    assert file.header.negatives_start_e_id == 4 and file.neg_dst.dtype == np.int64


@pytest.mark.parametrize("rows", [np.zeros((3, 2), np.int64), np.zeros((10, 1), np.int64), -np.ones((6, 2), np.int64), None])
def test_negatives_of_another_shape_or_below_0_are_refused(tmp_path, rows):
    with TGUFWriter.create(tmp_path / "x.tguf", TGUFSchema(10, 2, negatives_per_edge=2, negatives_start=4)) as writer, \
            pytest.raises(ValueError, match="neg_dst|node ids"):
        writer.append_edges(*edges(10), rows)


def test_an_empty_and_a_partly_filled_file_with_every_section_read_as_they_are(tmp_path):
    path = tmp_path / "x.tguf"
    writer = TGUFWriter.create(path, TGUFSchema(10, 2, 5, 1, 8, 3, val_start=6, test_start=8, negatives_per_edge=2, negatives_start=6))
    empty = open_tguf(path)
    shapes = {"src": (0,), "msg": (0, 2), "neg_dst": (0, 2), "node_feat": (0, 3), "label_n_id": (0,), "label_target": (0, 1)}
    assert {n: getattr(empty, n).shape for n in shapes} == shapes and (empty.val_start, empty.test_start) == (6, 8)
    assert empty.splits["test"] == (0, 0) and len(empty.label_events) == 0
    writer.append_edges(*edges(7), np.ones((1, 2), np.int64))
    writer.append_node_features(np.array([4, 5, 1]), np.array([[4] * 3, [5] * 3, [1] * 3], np.float32))
    writer.commit()
    partly = open_tguf(path)
    assert (partly.num_edges, partly.num_nodes, len(partly.neg_dst)) == (7, 6, 1)
    assert partly.node_feat[:, 0].tolist() == [0, 1, 0, 0, 4, 5] and partly.splits["val"] == (6, 7)
    writer.close()
    bare = tmp_path / "bare.tguf"
    TGUFWriter.create(bare, TGUFSchema(0)).close()
    assert open_tguf(bare).num_edges == 0 and open_tguf(bare).neg_dst.shape == (0, 0)


def test_a_tensor_is_the_file_without_a_copy_and_writing_to_it_changes_nothing(tmp_path):
    import torch

    path = tmp_path / "x.tguf"
    with TGUFWriter.create(path, TGUFSchema(100_000, 2)) as writer:
        writer.append_edges(*edges(100_000))
        writer.commit()
    before = path.read_bytes()
    tensor = open_tguf(path).tensor("time")
    assert tensor.dtype == torch.int64 and tensor[-1] == 999_990
    maps = Path("/proc/self/maps").read_text().splitlines()
    spans = [[int(x, 16) for x in line.split()[0].split("-")] for line in maps if line.endswith("x.tguf")]
    assert any(a <= tensor.data_ptr() < b for a, b in spans), "the tensor's memory is the mapped file"
    tensor[0] = 7
    assert path.read_bytes() == before
    assert open_tguf(path).tensor("label_time").shape == (0,)


def edges(n, dim=2, start=0):
    i = np.arange(start, start + n)
    return i, i + 1, i * 10, np.ones((n, dim), np.float32)


def test_a_file_is_valid_before_between_and_after_commits(tmp_path):
    path = tmp_path / "x.tguf"
    writer = TGUFWriter.create(path, TGUFSchema(100, 2))
    assert open_tguf(path).num_edges == 0
    writer.append_edges(*edges(30))
    assert open_tguf(path).num_edges == 0
    writer.commit()
    first = open_tguf(path)
    writer.append_edges(*edges(20, start=30))
    writer.commit()
    assert (first.num_edges, open_tguf(path).num_edges) == (30, 50)
    assert first.column("src")[49] == 49, "a mapping made before sees rows written later"
    writer.close()


def test_reading_copies_nothing(tmp_path):
    with TGUFWriter.create(tmp_path / "x.tguf", TGUFSchema(10, 2)) as writer:
        writer.append_edges(*edges(10))
        writer.commit()
    file = open_tguf(tmp_path / "x.tguf")
    assert not file.src.flags.owndata and not file.msg.flags.owndata and not file.src.flags.writeable


def test_a_stream_without_features_leaves_room_behind_msg_offset(tmp_path):
    with TGUFWriter.create(tmp_path / "x.tguf", TGUFSchema(10)) as writer:
        writer.append_edges(*edges(10, 0))
        writer.commit()
    file = open_tguf(tmp_path / "x.tguf")
    assert file.header.msg_offset < file.file_bytes and file.msg.shape == (10, 0)


@pytest.mark.parametrize(("change", "error"), [
    (lambda c: (c[0], c[1], c[2][::-1].copy(), c[3]), ValueError),
    (lambda c: (c[0] - 5, *c[1:]), ValueError),
    (lambda c: (c[0].astype(np.int32), *c[1:]), ValueError),
    (lambda c: (*c[:3], c[3][:, :1].copy()), ValueError),
    (lambda c: (c[0][:3], *c[1:]), ValueError),
])
def test_the_writer_refuses_columns_that_do_not_fit(tmp_path, change, error):
    with TGUFWriter.create(tmp_path / "x.tguf", TGUFSchema(10, 2)) as writer, pytest.raises(error):
        writer.append_edges(*change(edges(8)))


def test_a_full_file_says_so(tmp_path):
    with TGUFWriter.create(tmp_path / "x.tguf", TGUFSchema(10, 2)) as writer, pytest.raises(CapacityError, match="10 edges"):
        writer.append_edges(*edges(11))


@pytest.mark.parametrize(("field", "value", "says"), [
    ("magic", 1, "magic"), ("version", 2, "version 2"), ("src_offset", 168, "older"), ("dst_offset", 4097, "dst"),
    ("msg_offset", 2**40, "msg"), ("num_edges", 2**60, "room for"), ("time_offset", 4096, "time"),
    ("num_labels", 3, "labels"), ("test_start", 7, "splits|test_start"), ("node_feat_offset", 3, "node_feat"),
])
def test_a_header_that_lies_is_refused_by_name(tmp_path, field, value, says):
    raw = bytearray((GOLDEN / "edges_msgs.tguf").read_bytes())
    at = 8 * FIELDS.index(field)
    raw[at:at + 8] = value.to_bytes(8, "little")
    if field == "test_start":
        raw[8 * FIELDS.index("val_start"):8 * FIELDS.index("val_start") + 8] = (9).to_bytes(8, "little")
    path = tmp_path / "x.tguf"
    path.write_bytes(raw)
    with pytest.raises(TGUFError, match=says):
        open_tguf(path)


@pytest.mark.parametrize(("column", "row", "value", "says"), [
    ("time", 300, 1, "time row 300 is smaller"), ("src", 17, -1, "src row 17 is a negative"),
    ("dst", 599, -(2**63), "dst row 599"), ("msg", 4, b"\x00\x00\xc0\x7f" * 4, "msg row 4 is not finite"),
])
def test_rows_that_lie_are_found_when_the_file_is_opened(tmp_path, column, row, value, says):
    raw = bytearray((GOLDEN / "edges_msgs.tguf").read_bytes())
    section = open_tguf(GOLDEN / "edges_msgs.tguf").sections[column]
    data = value if isinstance(value, bytes) else value.to_bytes(8, "little", signed=True)
    at = section.offset + row * section.row_bytes
    raw[at:at + len(data)] = data
    path = tmp_path / "x.tguf"
    path.write_bytes(raw)
    with pytest.raises(TGUFError, match=says):
        open_tguf(path)
    assert open_tguf(path, check_rows=False).num_edges == 600


def test_headers_made_of_noise_are_refused_and_never_crash(tmp_path):
    raw = (GOLDEN / "nodefeat_labels_splits.tguf").read_bytes()
    rng = np.random.default_rng(3)
    path = tmp_path / "x.tguf"
    values = [0, 1, 4095, 4096, 8192, 2**31, 2**40, 2**62, 2**63, 2**64 - 1]
    refused = 0
    for _ in range(600):
        fuzzed = bytearray(raw)
        for _ in range(int(rng.integers(1, 5))):
            at = 8 * int(rng.integers(0, len(FIELDS)))
            fuzzed[at:at + 8] = int(rng.choice(np.array(values, np.uint64))).to_bytes(8, "little")
        path.write_bytes(fuzzed[: len(raw) - PAGE * int(rng.integers(0, 2))])
        try:
            file = open_tguf(path)
        except TGUFError as error:
            assert "Operator action" in str(error)
            refused += 1
        else:
            assert file.src.shape == file.time.shape and len(file.label_events) <= file.num_labels
            assert file.splits["test"][1] == file.num_edges
    assert refused > 300


@pytest.mark.parametrize("make", [Path.mkdir, __import__("os").mkfifo, lambda p: None])
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path, make):
    path = tmp_path / "x.tguf"
    make(path)
    with pytest.raises(TGUFError, match="regular file|cannot be opened"):
        open_tguf(path)


@pytest.mark.parametrize("wrong", [{"edge_capacity": -1}, {"msg_dim": 2**41}, {"val_start": 9, "test_start": 5},
                                   {"val_start": 11}, {"negatives_start": 11}])
def test_a_schema_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ValueError, match="|".join(wrong)):
        TGUFSchema(**{"edge_capacity": 10, **wrong})


@pytest.mark.parametrize("size", [0, 100, PAGE, 3 * PAGE])
def test_a_truncated_file_is_refused(tmp_path, size):
    path = tmp_path / "x.tguf"
    path.write_bytes((GOLDEN / "edges_msgs.tguf").read_bytes()[:size])
    with pytest.raises(TGUFError):
        open_tguf(path)


def test_negatives_that_begin_behind_all_rows_are_refused_instead_of_lost(tmp_path):
    path = tmp_path / "x.tguf"
    with TGUFWriter.create(path, TGUFSchema(10, 2, negatives_per_edge=2, negatives_start=4)) as writer:
        writer.append_edges(*edges(10), np.zeros((6, 2), np.int64))
        writer.commit()
    assert open_tguf(path).neg_dst.shape == (6, 2)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 64, 10**6)
    path.write_bytes(data)
    with pytest.raises(TGUFError, match="negatives begin at edge 1000000"):
        open_tguf(path)
