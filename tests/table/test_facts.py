"""Facts of past events are the bits that the trainer recorded, or are refused by name."""

import shutil

import numpy as np
import pytest

import streamd
from streamd.errors import FactsError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.graph.facts.columns import FACT_NAMES
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.live import save_facts
from streamd.table import fact_rows
from streamd.table.sql.session import SqlSession
from streamd.tensors import unpack
from tests.builders import SECOND, compact, settings, stream, write_log
from tests.table.logs import SHOP, delete, shop_schema, us

MODEL = settings("x").model
NAMES = [*FACT_NAMES, *(f"all_{name}" for name in FACT_NAMES)]


def table_of(path, *args, **values):
    with streamd.open_log(path) as snapshot:
        return snapshot.facts(*args, **values).read_all()


def matrix(table, names=NAMES):
    return np.stack([table[name].to_numpy() for name in names], 1)


def recorded(path):
    """Event id and facts of each event that the trainer stored for replay, in all edge sets."""
    found = {}
    for file in sorted((path / "train" / "replay").glob("*.safetensors")):
        arrays = unpack(file)[0]
        for event, facts in zip(arrays["event_E"].tolist(), arrays["facts_ECF"][:, 0], strict=True):
            found[event] = facts
    return found


def test_facts_are_those_of_replay_chunks_to_the_bit(shop):
    with streamd.open_log(shop) as snapshot:
        table = SqlSession(snapshot, 1 << 28, MODEL).query("select * from facts order by event").read_all()
    rows = dict(zip(table["event"].to_pylist(), matrix(table), strict=True))
    stored = recorded(shop)
    both = sorted(rows.keys() & stored.keys())
    assert len(both) > 100 and max(both) > 700, "also events after the delete of a node"
    for event in both:
        # The recorder's rows end with a one-hot of the edge set.
        assert rows[event].tobytes() == stored[event][: len(NAMES)].tobytes(), event


@pytest.mark.parametrize("edge_set", ["views", "buys", None])
def test_facts_of_a_set_and_of_a_range_are_rows_of_the_whole(shop, edge_set):
    whole = table_of(shop, model=MODEL)
    assert whole.schema.names == [*fact_rows.EVENTS.names, *NAMES]
    some = table_of(shop, edge_set, since="1970-01-01T02:00", until="1970-01-01T04:00", model=MODEL)
    kept = [2 * 3600 <= t / SECOND < 4 * 3600 and edge_set in (None, s) for t, s in zip(us(whole["time"]), whole["edge_set"].to_pylist(), strict=True)]
    assert some.equals(whole.filter(kept)) and some.num_rows > 50
    with streamd.open_log(shop) as snapshot:
        session = SqlSession(snapshot, 1 << 28, MODEL)
        source = f"facts('{edge_set}')" if edge_set else "facts"
        found = session.query(f"from {source} where time >= '1970-01-01 02:00' and time < '1970-01-01 04:00' order by event").read_all()
    assert found.to_pylist() == some.to_pylist()


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_events_of_equal_times_do_not_see_one_another_however_they_are_read(shop, monkeypatch, piece):
    whole = table_of(shop, model=MODEL)
    monkeypatch.setattr(fact_rows, "PIECE_EVENTS", piece)
    assert matrix(table_of(shop, model=MODEL)).tobytes() == matrix(whole).tobytes()


def test_more_events_of_one_time_than_a_piece(tmp_path, monkeypatch):
    src, dst, time = stream(400)
    time[100:300] = time[100]
    time[300:] = np.maximum(time[300:], time[299])
    write_log(tmp_path, src, dst, time)
    whole = matrix(table_of(tmp_path, model=MODEL), FACT_NAMES)
    monkeypatch.setattr(fact_rows, "PIECE_EVENTS", 30)
    assert matrix(table_of(tmp_path, model=MODEL), FACT_NAMES).tobytes() == whole.tobytes()


def facts_at(path, edge):
    """A role's stored facts at an event."""
    log = LogReader.open(path)
    facts = SetFacts(log.state.schema, MODEL.half_lives_seconds, MODEL.max_pairs, log.first_edge, log.node_sets_of)
    facts.advance(*log.edges(log.first_edge, edge), log.edge_sets(log.first_edge, edge), log.deletions.of_nodes)
    save_facts(facts, path / "roles" / "serve" / "facts")


@pytest.fixture
def dropped(tmp_path):
    """A log of 900 events whose first 400 are dropped, and the facts of all of them before that."""
    write_log(tmp_path, *stream(900), segment_edges=200)
    before = table_of(tmp_path, model=MODEL)
    facts_at(tmp_path, 500)
    writer = LogWriter(tmp_path, LogReader.open(tmp_path).state.schema, 200)
    writer.drop_before(400)
    writer.close()
    return tmp_path, before


def test_stored_facts_replace_the_events_that_were_dropped(dropped):
    path, before = dropped
    log = LogReader.open(path)
    since = int(log.time_of(np.array([500]))[0]) + 1
    after = table_of(path, since=since, model=MODEL)
    kept = np.array(us(before["time"])) >= since
    assert log.first_edge == 400 and after.num_rows > 300 and matrix(after, FACT_NAMES).tobytes() == matrix(before, FACT_NAMES)[kept].tobytes()


def test_facts_after_dropped_events_are_refused_with_the_time_from_which_they_can_be_had(dropped):
    path, _ = dropped
    with pytest.raises(FactsError, match="event 400 on cannot be computed: the log has dropped the events before 400.*later times only, from 1970-01-01T02:57:08Z on"):
        table_of(path, model=MODEL)
    # Half-lives that differ make the stored facts useless.
    other = MODEL.model_copy(update={"half_lives_seconds": (1.0, 2.0, 3.0, 4.0, 5.0)})
    with pytest.raises(FactsError, match="has dropped the events before 400"):
        table_of(path, since="1970-01-01T05:00", model=other)
    shutil.rmtree(path / "roles" / "serve" / "facts")
    with pytest.raises(FactsError, match="keep more of the log"):
        table_of(path, since="1970-01-01T05:00", model=MODEL)
    with streamd.open_log(path) as snapshot, pytest.raises(FactsError, match="has dropped"):
        SqlSession(snapshot, 1 << 28, MODEL).query("select max(met) from facts").read_all()


def test_facts_after_compacted_events_need_stored_facts(tmp_path):
    write_log(tmp_path, *stream(900), segment_edges=200)
    writer = LogWriter(tmp_path, LogReader.open(tmp_path).state.schema, 200)
    delete(writer, [4])
    before = table_of(tmp_path, model=MODEL)
    facts_at(tmp_path, 900)
    assert compact(writer).edges > 0
    writer.close()
    with pytest.raises(FactsError, match="a compaction has overwritten deleted events"):
        table_of(tmp_path, model=MODEL)
    assert before.num_rows > 800


def test_the_default_model_is_that_of_the_newest_version(shop):
    assert matrix(table_of(shop)).tobytes() == matrix(table_of(shop, model=MODEL)).tobytes()
    assert shop_schema(shop).edge_set_names == tuple(SHOP["graph__edge_sets"])
