"""As many alarms a day as wanted, of the rarest events, each source at most once in its quiet time, over stops and copies."""

import json
from dataclasses import asdict

import msgspec
import numpy as np
import pytest

from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.scoring import alarms, rarity, source_evidence
from streamd.scoring.alarms import DAY_US, Alarms
from streamd.scoring.record import ScoreRecord
from streamd.scoring.scorer import Scored
from streamd.settings.loading import load_settings
from tests.builders import settings, stream, write_log
from tests.scoring.world import Feed, Scoring, Topic
from tests.server.world import SCHEMA, World


def options(**values):
    return settings("unused", server__score_topic="scores", server__alarm_topic="alarms", **values).server


def scored(event, src, value, time_us):
    record = ScoreRecord(event=event, src=f"h:{src}", dst="s:1", edge_set="default", time_us=time_us, version="v", memory_event=0, known=True,
                         score=-value, rank=2.0, candidates=100, scored_at=0.0)
    # As rare by counting as by the model.
    facts = np.zeros(NUM_FACTS, np.float32)
    facts[[FactColumn.LOG_SHARE_5, FactColumn.LOG_PAIR_SHARE, FactColumn.MET]] = -value, -value, 1
    return Scored(record, src, 1000, value, facts)


def days(num_days, per_day=500, seed=0):
    """Events of 40 sources, evenly spread over days."""
    rng = np.random.default_rng(seed)
    for i in range(num_days * per_day):
        yield scored(i, int(rng.integers(0, 40)), float(rng.exponential()), i * (DAY_US // per_day))


def raised(made):
    return [msgspec.json.decode(one.alarm) for one in made if one.alarm is not None]


def test_there_are_as_many_alarms_a_day_as_wanted(tmp_path):
    made = Alarms(tmp_path, options(server__alarms_per_day=4, server__alarm_quiet_seconds=0))
    found = raised(map(made.rate, days(32)))
    assert abs(len(found) - 4 * 30) < 4 * np.sqrt(120)
    assert all(one["source_p_value"] <= 4 / 500 * 1.01 for one in found) and len({one["src"] for one in found}) > 20


def test_without_a_topic_for_them_records_are_rated_all_the_same(tmp_path):
    made = Alarms(tmp_path, settings(tmp_path, server__score_topic="scores").server)
    last = [made.rate(one) for one in days(4)][-1]
    assert last.alarm is None and last.record.surprise == last.surprise and 0 < last.record.p_value <= 1
    assert "p_value" in json.loads(last.record.encode(7))


def test_a_source_is_quiet_for_a_while_and_its_next_alarm_counts_the_repeats(tmp_path):
    made = Alarms(tmp_path, options(server__alarms_per_day=4, server__alarm_quiet_seconds=600))
    for one in days(8):
        made.rate(one)
    begin, at = 8 * DAY_US, 8 * 500
    odd = [made.rate(scored(at + i, 77, 40.0 + i, begin + i * 200_000_000)) for i in range(5)]
    assert [one.alarm is not None for one in odd] == [True, False, False, True, False]
    assert [one["repeats"] for one in raised(odd)][1] == 2
    # An event that is scored again, as after a kill, raises its alarm again: the topic may lack it.
    assert made.rate(scored(at + 3, 77, 43.0, begin + 600_000_000)).alarm is not None


def test_the_heartbeat_has_the_number_of_sources_with_an_alarm_in_the_last_day(tmp_path):
    made = Alarms(tmp_path, options(server__alarms_per_day=4, server__alarm_quiet_seconds=600))
    assert made.fields() == {"alarmed_sources": 0} and Alarms(tmp_path, settings(tmp_path).server).fields() == {}
    found = []
    for one in days(9):
        found += [one.record] if made.rate(one).alarm is not None else []
        begin = one.record.time_us - DAY_US
        assert made.fields() == {"alarmed_sources": len({r.src for r in found if r.time_us > begin})}
    assert found


def test_a_stop_changes_no_p_value_and_no_alarm(tmp_path):
    whole = [one._asdict() | asdict(one.record) for one in map(Alarms(tmp_path / "a", options()).rate, days(9))]
    events = list(days(9))
    first = Alarms(tmp_path / "b", options())
    parts = [first.rate(one) for one in events[:2_500]]
    first.store()
    second = Alarms(tmp_path / "b", options())
    second.begin(10_000)
    # The last 20 were in flight and come again.
    assert [second.rate(one).record.event for one in events[2_480:2_500]] == list(range(2_480, 2_500))
    parts += [second.rate(one) for one in events[2_500:]]
    for ours, plain in zip(parts, whole, strict=True):
        assert (ours.record.p_value, ours.alarm) == (plain["p_value"], plain["alarm"]), ours.record.event


def test_a_restored_log_that_ends_earlier_has_its_new_events_compared(tmp_path):
    made = Alarms(tmp_path, options())
    for one in days(4):
        made.rate(one)
    made.begin(1_900)
    made.rate(scored(1_900, 3, 1.0, 5 * DAY_US))
    assert len(made._rarity.state().sets["default"][0]) == 2_001


@pytest.mark.parametrize("content", [b"", b"\xc1", msgspec.msgpack.encode({"rarity": 7}), b"\x83"])
def test_a_damaged_file_begins_anew_and_is_named(tmp_path, capsys, content):
    made = Alarms(tmp_path, options())
    made.store()
    made._path.write_bytes(content)
    assert len(list(map(Alarms(tmp_path, options()).rate, days(1)))) == 500
    assert "rarity_begins_anew" in capsys.readouterr().out


def test_a_full_disk_keeps_the_older_file_and_is_logged_once(tmp_path, capsys, monkeypatch):
    made = Alarms(tmp_path, options())
    made.store()
    before = made._path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(alarms, "write_durably", full)
    for one in days(1):
        made.rate(one)
    made.store(1e9)
    made.store(2e9)
    assert made._path.read_bytes() == before and capsys.readouterr().out.count("rarity_not_written") == 1


def test_an_alarm_topic_needs_a_score_topic(tmp_path):
    with pytest.raises(Exception, match="set server.score_topic too"):
        load_settings(None, {"data_dir": tmp_path, "server.alarm_topic": "alarms"}, {})


def test_the_role_sends_an_alarm_with_its_reasons_beside_the_score(tmp_path, monkeypatch):
    """A user who always returns goes to an item of others; the role is stopped and started in between."""
    for module in (rarity, source_evidence):
        monkeypatch.setattr(module, "MIN_EVENTS", 100)
    src, dst, time_E = stream(900, hours=9)
    rng = np.random.default_rng(5)
    src[src == 3] = 4
    dst = 20 + src % 15
    noise = rng.random(900) < 0.1
    dst[noise] = 20 + rng.integers(0, 15, noise.sum())
    dst[850], src[850] = 34, 0
    whole, path = tmp_path / "whole", tmp_path / "data"
    write_log(whole, src, dst, time_E, SCHEMA)
    write_log(path, src[:400], dst[:400], time_E[:400], SCHEMA)
    world = World(path, model__name="pair", registry__keep=1, server__score_topic="scores", server__alarm_topic="alarms",
                  server__alarms_per_day=24, server__alarm_quiet_seconds=0)
    world.train()
    topic = Topic()
    scoring = Scoring(world.settings, topic).ready()
    feed = Feed(path, whole, SCHEMA, 400)
    feed.commit(700)
    scoring.turn()
    scoring.loop._alarms.store()
    scoring = Scoring(world.settings, topic).ready()
    feed.commit(900)
    scoring.turn()
    feed.close()

    assert [r.event for r in topic.records] == list(range(400, 900)) and all(r.p_value for r in topic.records[150:])
    found = {one["event"]: one for one in topic.alarms}
    assert 1 <= len(found) < 60
    of = {r.event: r for r in topic.records}
    for event, one in found.items():
        assert (one["src"], one["dst"], one["rank"], one["p_value"]) == (of[event].src, of[event].dst, of[event].rank, of[event].p_value)
        assert len(one["reasons"]) == 5 and "met" in one["reasons"][0]
    assert np.mean([of[event].rank for event in found]) > 3 * np.mean([r.rank for r in topic.records])


def test_deleted_sources_leave_no_trace_in_the_state(tmp_path):
    made = Alarms(tmp_path, options(server__alarms_per_day=100))
    for one in days(8):
        made.rate(one)
    nodes = {node for node, *_ in made._rarity.state().sources}
    assert 7 in nodes and 7 in {node for node, *_ in made._evidence.state().sources}

    class Deleted:
        nodes = np.array([7])

    made.apply(Deleted)
    assert 7 not in {node for node, *_ in (*made._rarity.state().sources, *made._evidence.state().sources)} and 7 not in made._last
