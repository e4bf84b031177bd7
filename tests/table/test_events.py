"""Events of a log as Arrow batches: without a copy over the mapped segments, without deleted rows, by time and column."""

import dataclasses
import datetime

import numpy as np
import pyarrow as pa
import pytest

import streamd
from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, SetKey, empty_batch
from streamd.settings.loading import schema_of
from streamd.table import set_rows
from tests.builders import (
    HOUR,
    SECOND,
    SETS,
    batch,
    compact,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)
from tests.table.logs import (
    SHOP,
    delete,
    long_log,
    mapped_file,
    own_memory,
    shop_schema,
    us,
    visible_ids,
)


def addresses(batch):
    """Of each column the addresses of its values."""
    return {name: (column.flatten() if pa.types.is_fixed_size_list(column.type) else column).buffers()[1].address
            for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def test_the_columns_of_one_set_are_the_mapped_file_itself(tmp_path):
    write_log(tmp_path, *stream(5000), Schema(2), segment_edges=2000)
    log = LogReader.open(tmp_path)
    with streamd.open_log(tmp_path) as snapshot:
        batches = list(snapshot.events())
    assert [b.num_rows for b in batches] == [2000, 2000, 1000] and batches[0].schema.names == ["src", "dst", "time", "features"]
    at = 0
    for one in batches:
        assert all(mapped_file(address).endswith(f"{at:020d}.tguf") for address in addresses(one).values())
        ids = np.arange(at, at + one.num_rows)
        for name in ("src", "dst"):
            np.testing.assert_array_equal(one[name], log.gather(name, ids))
        assert us(one["time"]) == log.time_of(ids).tolist()
        np.testing.assert_array_equal(one["features"].to_pylist(), log.features_of(ids))
        at += one.num_rows


def test_all_events_in_hand_take_no_memory_of_their_own(tmp_path):
    long_log(tmp_path, 600_000, 8)
    with streamd.open_log(tmp_path) as snapshot:
        snapshot.events().read_all()
        before = own_memory()
        table = snapshot.events().read_all()
        taken = own_memory() - before
        assert taken < 1 << 20 < table.nbytes == 600_000 * (24 + 32)
        assert int(np.sum(table["time"].cast("int64"))) == 1000 * 600_000 * 599_999 // 2


def test_copied_columns_take_bounded_memory(tmp_path):
    long_log(tmp_path, 600_000, 8)
    with streamd.open_log(tmp_path) as snapshot:
        names = ["event", "src_key", "dst_key", "original_time", "edge_set"]
        read = iter(snapshot.events(columns=names))
        next(read)
        before, most, total = own_memory(), 0, 0
        for one in read:
            most, total = max(most, own_memory() - before), total + one.nbytes
        assert total > 12 << 20 and most < 24 << 20, "about one batch of 131,072 rows"


@pytest.mark.parametrize(("short", "rows"), [(set_rows.SHORT_RUN, 131_072), (1, 64), (8, 100)])
def test_deleted_rows_are_cut_out(tmp_path, monkeypatch, short, rows):
    monkeypatch.setattr(set_rows, "SHORT_RUN", short)
    monkeypatch.setattr(set_rows, "BATCH_ROWS", rows)
    src, dst, time = stream(3000)
    write_log(tmp_path, src, dst, time, Schema(1), segment_edges=1100)
    writer = LogWriter(tmp_path, Schema(1), 1100)
    gone = np.random.default_rng(1).choice(3000, 60, replace=False)
    delete(writer, [4, 25], [(int(src[i]), int(dst[i]), int(time[i]), 0) for i in gone.tolist()])
    writer.close()
    log = LogReader.open(tmp_path)
    ids = visible_ids(log)
    assert len(ids) < 2900
    with streamd.open_log(tmp_path) as snapshot:
        batches = list(snapshot.events(columns=["src", "event", "features"]))
        table = pa.Table.from_batches(batches)
    np.testing.assert_array_equal(table["event"], ids)
    np.testing.assert_array_equal(table["src"], log.gather("src", ids))
    np.testing.assert_array_equal(table["features"].to_pylist(), log.features_of(ids))
    assert all(0 < b.num_rows <= rows for b in batches)
    views = sum("tguf" in mapped_file(b["src"].buffers()[1].address) for b in batches)
    assert (views > 0) == (short < 100), "long runs are views, rows of short ones are joined"


def test_a_compacted_log_gives_the_same_events(tmp_path):
    src, dst, time = stream(3000)
    write_log(tmp_path, src, dst, time, Schema(1), segment_edges=1100)
    writer = LogWriter(tmp_path, Schema(1), 1100)
    delete(writer, [4, 25])
    with streamd.open_log(tmp_path) as snapshot:
        before = snapshot.events(columns=["event", "src", "dst", "time", "features", "src_key"]).read_all()
    assert compact(writer).segments == 3
    with streamd.open_log(tmp_path) as snapshot:
        after = snapshot.events(columns=before.schema.names).read_all()
    assert after.equals(before) and not {4, 25} & set(after["src"].to_pylist())
    writer.close()


@pytest.mark.parametrize("edge_set", ["views", "buys", "follows", None])
def test_events_of_each_set_and_of_all_in_event_order(tmp_path, edge_set):
    src, dst, time, sets = sets_stream()
    write_sets_log(tmp_path, src, dst, time, sets, segment_edges=400)
    writer = LogWriter(tmp_path, SETS, 400)
    some = range(0, 900, 7)
    delete(writer, [3], [(int(src[i]), int(dst[i]), int(time[i]), int(sets[i])) for i in some])
    writer.close()
    log = LogReader.open(tmp_path)
    number = None if edge_set is None else SETS.edge_set_names.index(edge_set)
    ids = visible_ids(log, number, HOUR, 3 * HOUR)
    with streamd.open_log(tmp_path) as snapshot:
        table = snapshot.events(edge_set, since=HOUR, until=3 * HOUR,
                                columns=["event", "edge_set", "src", "dst", "time", "features"][: 5 + (edge_set != "follows")]).read_all()
    np.testing.assert_array_equal(table["event"], ids)
    assert table["edge_set"].to_pylist() == [SETS.edge_set_names[n] for n in log.edge_sets_of(ids)]
    np.testing.assert_array_equal(table["dst"], log.gather("dst", ids))
    assert us(table["time"]) == log.time_of(ids).tolist()
    if edge_set != "follows":
        rows = log.features_of(ids)
        columns = [SETS.edge_columns(int(n)) for n in log.edge_sets_of(ids)]
        assert table["features"].to_pylist() == [row[c].tolist() for row, c in zip(rows, columns, strict=True)]


def test_features_are_columns_of_their_own_kind(tmp_path):
    schema = shop_schema(tmp_path)
    writer = LogWriter(tmp_path, schema, 100)
    #                price  card cash other  shop      text
    values = np.array([[2.5, 1, 0, 0, 0, 0, 1, 0, 7, 8], [3.5, 0, 0, 1, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]], np.float32)
    src, dst, time = np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]), np.arange(4) * SECOND
    rows = np.concatenate([schema.edge_rows(0, np.array([[1.5, 1, 9]], np.float32)), schema.edge_rows(1, values)])
    keys = ["7", 7, SetKey(1, "ä"), SetKey(1, "")]
    writer.commit(dataclasses.replace(empty_batch(schema), src_E=src, dst_E=dst, time_E=time, msg_ED=rows, new_keys=tuple(keys)),
                  Progress(), 4 * SECOND)
    writer.close()
    with streamd.open_log(tmp_path) as snapshot:
        (view,) = snapshot.events("views", columns=["time", "feature_time", "seconds", "app"]).read_all().to_pylist()
        bought = snapshot.events("buys", columns=["price", "how", "shop", "text", "src_key", "src_key_int", "dst_key"]).read_all()
        assert snapshot.events("buys", columns=["shop"]).schema.field("shop").type == pa.int32()
    assert view == {"time": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "feature_time": 9, "seconds": 1.5, "app": True}
    assert bought.to_pylist() == [
        {"price": 2.5, "how": "card", "shop": 2, "text": [7, 8], "src_key": "7", "src_key_int": None, "dst_key": ""},
        {"price": 3.5, "how": "other", "shop": None, "text": [0, 1], "src_key": "7", "src_key_int": 7, "dst_key": "ä"},
        {"price": 0, "how": None, "shop": 0, "text": [0, 0], "src_key": "7", "src_key_int": 7, "dst_key": ""}]


def test_a_feature_that_came_later_is_0_before(tmp_path):
    old = schema_of(settings(tmp_path, **SHOP | {"graph__edge_sets": {"views": {"source": "user", "target": "item", "features": {"seconds": "number"}}}}))
    writer = LogWriter(tmp_path, old, 100)
    writer.commit(batch(old, np.array([0]), np.array([1]), np.array([5]), ["a", SetKey(1, "b")]), Progress(), 5)
    writer.close()
    new = shop_schema(tmp_path)
    writer = LogWriter(tmp_path, new, 100)
    rows = new.edge_rows(0, np.array([[3, 1, 4]], np.float32))
    writer.commit(dataclasses.replace(empty_batch(new), src_E=np.array([0]), dst_E=np.array([1]), time_E=np.array([6]), msg_ED=rows), Progress(), 6)
    writer.close()
    with streamd.open_log(tmp_path) as snapshot:
        assert snapshot.events("views", columns=["features"]).read_all()["features"].to_pylist() == [[0, 0, 0], [3, 1, 4]]
        assert snapshot.events("buys").read_all().num_rows == 0


@pytest.mark.parametrize("bound", [HOUR, "1970-01-01T01:00:00Z", "1970-01-01 01:00", datetime.datetime(1970, 1, 1, 1),
                                   datetime.datetime(1970, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))])
def test_a_bound_of_time_has_several_forms(tmp_path, bound):
    src, dst, time = stream(600)
    write_log(tmp_path, src, dst, time, segment_edges=200)
    with streamd.open_log(tmp_path) as snapshot:
        assert us(snapshot.events(until=bound, columns=["time"]).read_all()["time"]) == time[time < HOUR].tolist()
        assert us(snapshot.events(since=bound, columns=["time"]).read_all()["time"]) == time[time >= HOUR].tolist()


def test_a_late_event_has_its_original_time_too(tmp_path):
    schema = Schema()
    writer = LogWriter(tmp_path, schema, 100)
    late = dataclasses.replace(batch(schema, np.array([0, 1, 0]), np.array([1, 0, 1]), np.array([5, 9, 9]), ["a", "b"]), late_edge=(1,), late_time=(2,))
    writer.commit(late, Progress(), 9)
    writer.close()
    with streamd.open_log(tmp_path) as snapshot:
        table = snapshot.events(columns=["time", "original_time"]).read_all()
    assert us(table["time"]) == [5, 9, 9] and us(table["original_time"]) == [5, 2, 9]


def test_unknown_names_are_refused_with_the_nearest(tmp_path):
    write_sets_log(tmp_path, *sets_stream(200))
    with streamd.open_log(tmp_path) as snapshot:
        with pytest.raises(StreamdError, match="no edge set 'veiws'.*did you mean 'views'"):
            snapshot.events("veiws")
        with pytest.raises(StreamdError, match="events of views has no column 'sorce'"):
            snapshot.events("views", columns=["sorce"])
        with pytest.raises(StreamdError, match="since is 'soon'"):
            snapshot.events("views", since="soon")


def test_a_log_without_events_has_empty_tables(tmp_path):
    LogWriter(tmp_path, SETS, 100).close()
    with streamd.open_log(tmp_path) as snapshot:
        for edge_set in (None, "views"):
            schema = snapshot.event_table(edge_set).schema
            assert snapshot.events(edge_set, columns=schema.names).read_all().num_rows == 0
