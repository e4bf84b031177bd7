import json
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import CapacityError, TGUFError
from streamd.segments import TGUFSchema, TGUFWriter, open_tguf
from streamd.segments.format import FIELDS, PAGE

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
    with TGUFWriter(tmp_path / "x.tguf", schema) as writer:
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


def edges(n, dim=2, start=0):
    i = np.arange(start, start + n)
    return i, i + 1, i * 10, np.ones((n, dim), np.float32)


def test_a_file_is_valid_before_between_and_after_commits(tmp_path):
    path = tmp_path / "x.tguf"
    writer = TGUFWriter(path, TGUFSchema(100, 2))
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
    with TGUFWriter(tmp_path / "x.tguf", TGUFSchema(10, 2)) as writer:
        writer.append_edges(*edges(10))
        writer.commit()
    file = open_tguf(tmp_path / "x.tguf")
    assert not file.src.flags.owndata and not file.msg.flags.owndata and not file.src.flags.writeable


def test_a_stream_without_features_leaves_room_behind_msg_offset(tmp_path):
    with TGUFWriter(tmp_path / "x.tguf", TGUFSchema(10)) as writer:
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
    with TGUFWriter(tmp_path / "x.tguf", TGUFSchema(10, 2)) as writer, pytest.raises(error):
        writer.append_edges(*change(edges(8)))


def test_a_full_file_says_so(tmp_path):
    with TGUFWriter(tmp_path / "x.tguf", TGUFSchema(10, 2)) as writer, pytest.raises(CapacityError, match="10 edges"):
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


@pytest.mark.parametrize("size", [0, 100, PAGE, 3 * PAGE])
def test_a_truncated_file_is_refused(tmp_path, size):
    path = tmp_path / "x.tguf"
    path.write_bytes((GOLDEN / "edges_msgs.tguf").read_bytes()[:size])
    with pytest.raises(TGUFError):
        open_tguf(path)
