import dataclasses

import numpy as np
import pytest

from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.reader import open_tguf
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.exchange import export
from streamd.exchange.export import ExportOptions, export_range
from tests.builders import SECOND, SETS, batch, sets_rows, sets_stream, stream, write_sets_log

SCHEMA = Schema(2, 1, 1)
GONE = 5


@pytest.fixture
def log(tmp_path):
    """500 edges in segments of 130, a label every 50, features of nodes 3 and 5, node 5 deleted at the end."""
    src, dst, time = stream(500)
    writer = LogWriter(tmp_path / "log", SCHEMA, 130)
    for a in range(0, 500, 50):
        while writer.remaining_rows() < 50:
            writer.seal()
        at = np.array([0])
        labels = {"label_node_L": src[a:a + 1], "label_time_L": time[a:a + 1], "label_target_L": np.full((1, 1), a, np.float32)}
        features = {"node_F": np.array([(3, GONE)[a > 0]]), "node_row_F": at + 51, "node_edge_F": at + 50,
                    "node_values_F": np.full((1, 1), a + 1, np.float32)} if a < 100 else {}
        writer.commit(dataclasses.replace(batch(SCHEMA, src[a:a + 50], dst[a:a + 50], time[a:a + 50],
                                                [f"n:{i}" for i in range(40)] if a == 0 else ()), **labels, **features),
                      Progress(), int(time[a + 49]))
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"] = GONE, -1
    writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), writer.watermark)
    writer.close()
    return LogReader.open(tmp_path / "log")


@pytest.mark.parametrize("chunk", [64, 10**6])
def test_a_range_becomes_one_file_without_what_was_deleted(log, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(export, "CHUNK_EDGES", chunk)
    src, dst, time = log.edges(0, 500)
    a, b = int(time[60]), int(time[460])
    options = ExportOptions(start_us=a, end_us=b, val_share=0.2, test_share=0.1, negatives=7, seed=3)
    seen = []
    done = export_range(log, tmp_path / "out.tguf", options, lambda at, of: seen.append(at / of))
    kept = np.flatnonzero((time >= a) & (time < b) & (src != GONE))
    file = open_tguf(tmp_path / "out.tguf")
    assert (file.src == src[kept]).all() and (file.dst == dst[kept]).all() and (file.time == time[kept]).all()
    assert (file.msg == log.features_of(kept)).all() and seen == sorted(seen) and seen[-1] == 1
    for row, share in ((file.val_start, 0.3), (file.test_start, 0.1)):
        assert abs(row - len(kept) * (1 - share)) < 10 and file.time[row - 1] < file.time[row], "no time is divided"
    assert (done.num_edges, done.val_start, done.test_start) == (len(kept), file.val_start, file.test_start)
    wrong, true = file.neg_dst, file.dst[file.val_start:]
    assert wrong.shape == (len(true), 7) and not (wrong == true[:, None]).any()
    assert set(np.unique(wrong)) == set(np.unique(file.dst)), "all destinations are drawn"
    node, when, target = log.labels()
    inside = (when >= a) & (when < b) & (node != GONE)
    assert (file.label_n_id == node[inside]).all() and (file.label_target == target[inside]).all()
    assert file.node_feat[3] == 1 and file.num_nodes == 4, "node 5 is deleted"


def test_an_export_of_everything_without_splits_or_negatives(log, tmp_path):
    done = export_range(log, tmp_path / "out.tguf", ExportOptions(val_share=0, test_share=0))
    file = open_tguf(tmp_path / "out.tguf")
    assert (file.val_start, file.test_start) == (0, 0) == (done.val_start, done.test_start)
    assert file.neg_dst.size == 0 and file.num_edges == (log.edges(0, 500)[0] != GONE).sum()


def test_what_cannot_be_exported_leaves_no_file(log, tmp_path):
    with pytest.raises(StreamdError, match="no edge in that range"):
        export_range(log, tmp_path / "a.tguf", ExportOptions(start_us=10**15, end_us=10**15 + SECOND))
    (tmp_path / "b.tguf").write_bytes(b"mine")
    with pytest.raises(StreamdError, match="exists already"):
        export_range(log, tmp_path / "b.tguf", ExportOptions())
    assert not (tmp_path / "a.tguf").exists() and (tmp_path / "b.tguf").read_bytes() == b"mine"


def test_one_edge_set_is_exported_with_its_own_features(tmp_path):
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path / "log", src, dst, time, sets, segment_edges=250)
    log = LogReader.open(tmp_path / "log")
    done = export_range(log, tmp_path / "buys.tguf", ExportOptions(edge_set=1, val_share=0.2, test_share=0.2, negatives=3))
    own = np.flatnonzero(sets == 1)
    file = open_tguf(tmp_path / "buys.tguf")
    assert done.num_edges == len(own) and file.header.msg_dim == 2
    n = done.num_edges
    assert file.column("src", n).tolist() == src[own].tolist() and file.column("time", n).tolist() == time[own].tolist()
    np.testing.assert_array_equal(file.column("msg", n), sets_rows(sets)[own][:, SETS.edge_columns(1)])
    assert set(file.column("neg_dst", n - done.val_start).ravel().tolist()) <= set(dst[own].tolist()) and 0 < done.val_start < done.test_start < len(own)
    export.write_keys(log, tmp_path / "keys.csv")
    lines = (tmp_path / "keys.csv").read_text().splitlines()
    assert lines[0] == '"id","key","node_set"' and lines[1] == '0,0,"user"' and lines[-1].endswith('"item"')
