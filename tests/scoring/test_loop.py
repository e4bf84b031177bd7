"""The role's loop: what it scores, what it passes over and says so, and where it goes on after a stop."""

import dataclasses
import shutil
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from streamd.errors import KafkaError, SettingsError
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.ranking import ranks
from streamd.registry import Registry
from streamd.roles import ROLES, check_name, roles_of
from streamd.scoring import scorer
from streamd.scoring.arrivals import Arrivals
from streamd.scoring.record import ScoreRecord, decode
from tests.builders import (
    HOUR,
    SETS,
    SetKey,
    declared,
    sets_rows,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)
from tests.scoring.test_scorer import prequential, ragged
from tests.scoring.world import Feed, Scoring, Topic
from tests.server.test_schema_change import buy
from tests.server.world import SCHEMA, World


class Life:
    """A log whose first 260 events are learned, and a feed of the others."""

    def __init__(self, path, **values):
        src, dst, time_E = stream(600, hours=5)
        self.path, self.src, self.dst, self.time = path / "data", src, dst, time_E
        if not self.path.exists():
            write_log(path / "whole", src, dst, time_E, SCHEMA)
            write_log(self.path, src[:260], dst[:260], time_E[:260], SCHEMA)
        self.world = World(self.path, **values)
        self.feed = Feed(self.path, path / "whole", SCHEMA, 260)

    def learned(self):
        self.world.train()
        return self

    def scoring(self, topic=None, **more):
        return Scoring(self.world.settings, topic, **more)

    def delete(self, **fields):
        """Commit the delete of a node, or of an edge by its ends and time."""
        gone = np.zeros(1, DELETION)
        for name, value in {"dst": -1, **fields}.items():
            gone[name] = value
        self.feed.writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=gone), Progress(), int(self.time[self.feed.at - 1]))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The directories of a life that has learned."""
    path = tmp_path_factory.mktemp("learned")
    Life(path).learned().feed.close()
    return path


@pytest.fixture
def life(tmp_path, learned):
    shutil.copytree(learned, tmp_path / "life")
    made = Life(tmp_path / "life")
    yield made
    made.feed.close()


def events_of(topic):
    return [r.event for r in topic.records]


def test_the_topic_is_opened_when_scoring_begins_and_not_by_the_first_event(tmp_path):
    topic, opened = Topic(), []
    make = topic.open
    topic.open = lambda: opened.append(make()) or opened[-1]
    standby = Life(tmp_path).learned().scoring(topic, leads=False)
    standby.turn()
    assert not opened
    standby.leads = True
    standby.check_lead()
    standby.turn()
    assert len(opened) == 1


def test_a_topic_that_cannot_be_opened_early_is_tried_again_by_the_first_record(tmp_path):
    topic, tries = Topic(), []
    make = topic.open

    def open_later():
        tries.append(1)
        if len(tries) == 1:
            raise KafkaError("no broker", "wait")
        return make()

    topic.open = open_later
    life = Life(tmp_path).learned()
    scoring = life.scoring(topic).ready()
    life.feed.commit(265)
    scoring.turn()
    assert len(tries) == 2 and sum(map(len, topic.partitions)) == 5


def test_a_record_says_what_the_docs_say(life):
    scoring = life.scoring().ready()
    life.feed.commit(262)
    scoring.turn()
    part = next(p for p in scoring.topic.partitions if p)
    key, value = part[0]
    record = decode(value)
    assert key == record.src.encode() and record.schema == 1 and record.edge_set == "default"
    assert record.candidates == 14 and 1 <= record.rank <= 15, "of 15 destinations each other one is a candidate once"
    assert decode(b"no record") is None and decode(value.replace(b'"schema":1', b'"schema":2')) is None
    assert decode(value[:-1] + b',"later":1}') == record, "fields may be added"
    assert isinstance(record, ScoreRecord)


def test_a_log_of_several_sets_with_features_is_scored_as_its_windows_are(tmp_path):
    src, dst, time_E, sets = sets_stream(700)
    write_sets_log(tmp_path / "whole", src, dst, time_E, sets, watermark=100 * HOUR)
    path = tmp_path / "data"
    write_sets_log(path, src[:450], dst[:450], time_E[:450], sets[:450])
    chosen = settings(path, registry__keep=1, **{k.replace(".", "__"): v for k, v in declared().items()})
    world = World.of(path, chosen)
    world.train()
    version = world.registry.load(world.registry.champion())
    logits, _ = prequential(chosen, version, tmp_path / "whole")
    scoring = Scoring(chosen).ready()
    writer = LogWriter(path, SETS, 100_000)
    rows, at = sets_rows(sets), 450
    for end in ragged(3, 450, 700):
        writer.commit(dataclasses.replace(empty_batch(SETS), src_E=src[at:end], dst_E=dst[at:end], time_E=time_E[at:end],
                                          msg_ED=rows[at:end]), Progress(), int(time_E[end - 1]))
        at = end
        scoring.turn()
    writer.close()
    records = scoring.topic.records
    assert [r.event for r in records] == list(range(450, 700))
    names = SETS.edge_set_names
    for r in records:
        assert (r.rank, r.edge_set) == (ranks(logits[r.event][None])[0], names[sets[r.event]])
        assert r.src == int(src[r.event]) and r.dst == int(dst[r.event]) - 20 * (dst[r.event] >= 20), "keys within their sets"
    assert isinstance(SetKey(1, 2), tuple)


def test_a_deleted_event_gets_no_score_and_what_waits_of_it_is_taken_back(life):
    scoring = life.scoring().ready()
    life.feed.commit(280)
    scoring.turn()
    gone = int(life.src[300])
    scoring.topic.held = True
    life.feed.commit(320)
    scoring.turn(lambda: len(scoring.loop._outbox) == 40)
    before = scoring.topic.num_values
    life.delete(src=gone)
    scoring.turn(lambda: scoring.topic.num_sinks == 2)
    scoring.topic.release()
    life.feed.commit(400)
    scoring.turn()
    late = [r for r in scoring.topic.records if r.event >= 280]
    assert scoring.topic.num_values > before and not [r for r in late if f"n:{gone}" in (r.src, r.dst)]
    hidden = [e for e in range(280, 400) if gone in (life.src[e], life.dst[e])]
    assert [r.event for r in late] == [e for e in range(280, 400) if e not in hidden]
    assert scoring.skipped == {"deleted": len(hidden)} and 300 in hidden


def test_a_deleted_edge_gets_no_score(life):
    scoring = life.scoring().ready()
    scoring.topic.held = True
    life.feed.commit(262)
    scoring.turn(lambda: len(scoring.loop._outbox) == 2)
    life.delete(src=life.src[261], dst=life.dst[261], time=life.time[261])
    scoring.turn(lambda: scoring.skipped == {"deleted": 1})
    scoring.topic.release()
    scoring.turn()
    assert events_of(scoring.topic) == [260]


def test_after_a_restart_it_goes_on_behind_what_the_topic_has(life):
    first = life.scoring().ready()
    life.feed.commit(300)
    first.turn()
    first.topic.held = True
    life.feed.commit(330)
    first.turn(lambda: len(first.loop._outbox) == 30)

    # The process ends without a word: what it had sent may be in one partition and not in the other.
    sent = [one for one in first.topic.unsent if sum(one[1]) % 2 == 0]
    for _, key, value in sent:
        first.topic.write(key, value)
    assert 0 < len(sent) < 30
    first.topic.unsent, first.topic.held = [], False
    life.feed.commit(360)
    again = life.scoring(first.topic).ready()
    again.turn()
    assert events_of(first.topic) == list(range(260, 360)) and again.skipped == {}
    twice = first.topic.num_values - 100
    assert len(sent) <= twice <= len(sent) + 20, "what one partition had, and the pass before, of which no later record speaks"


def test_it_begins_at_the_logs_end_where_the_topic_is_empty_or_of_another_log(life):
    life.feed.commit(300)
    assert life.scoring().scorer.position == 300
    topic = Topic()
    record = ScoreRecord(event=5000, src="a", dst="b", edge_set="default", time_us=0, version="", memory_event=0, known=True, score=0,
                         rank=1, candidates=100, scored_at=0)
    topic.write(b"a", record.encode(5000))
    scoring = life.scoring(topic)
    assert scoring.scorer.position == 300 and scoring.skipped == {}


def test_a_backlog_is_bounded_and_what_is_older_is_counted(life, monkeypatch):
    first = life.scoring().ready()
    life.feed.commit(270)
    first.turn()
    life.feed.commit(500)
    monkeypatch.setattr("streamd.scoring.loop.MAX_BACKLOG", 50)
    again = life.scoring(first.topic).ready()
    again.turn()
    assert events_of(first.topic) == [*range(260, 270), *range(450, 500)] and again.skipped == {"old": 450 - 260}


def test_events_that_waited_too_long_are_passed_over_and_the_newest_scored_at_once(life):
    scoring = life.scoring().ready()
    logits, _ = prequential(life.world.settings, Registry.of(life.world.settings).load(scoring.scorer.version), life.path.parent / "whole")
    life.feed.commit(400)
    scoring.grow_old()
    scoring.turn()
    life.feed.commit(430)
    scoring.turn()
    assert events_of(scoring.topic) == list(range(400, 430)) and scoring.skipped == {"behind": 140}
    assert all(r.rank == ranks(logits[r.event][None])[0] for r in scoring.topic.records), "what passed moved facts and memory"


def test_while_the_topic_is_away_events_wait_then_get_no_score_and_the_others_go_on(life, monkeypatch):
    monkeypatch.setattr("streamd.scoring.outbox.RETRY_SECONDS", 0.02)
    scoring = life.scoring().ready()
    scoring.topic.away = True
    life.feed.commit(280)
    scoring.turn(lambda: scoring.loop._outbox.is_away)
    assert len(scoring.loop._outbox) == 20 and scoring.skipped == {}
    assert scoring.loop._outbox.away_fields(time.monotonic())["topic_away"]

    # Back in time: nothing is missing.
    scoring.topic.away = False
    with capture_logs() as said:
        scoring.turn(lambda: not len(scoring.loop._outbox))
    assert [line["away_seconds"] >= 0 for line in said if line["event"] == "score_topic_back"] == [True]
    assert scoring.loop._outbox.away_fields(time.monotonic()) == {}
    assert events_of(scoring.topic) == list(range(260, 280))

    # Away for too long: those that waited and those behind them are counted.
    scoring.topic.away = True
    life.feed.commit(290)
    scoring.turn(lambda: scoring.loop._outbox.is_away)
    life.feed.commit(300)
    scoring.grow_old()
    scoring.turn(lambda: scoring.skipped == {"broker": 20})
    scoring.topic.away = False
    life.feed.commit(310)
    scoring.turn(lambda: scoring.topic.num_values >= 30)
    assert events_of(scoring.topic) == [*range(260, 280), *range(300, 310)]


def test_a_score_that_is_no_number_and_an_event_that_fails_are_said_and_the_others_go_on(life, monkeypatch, capsys):
    scoring = life.scoring().ready()
    served = scoring.scorer.served
    right = served.scores

    def scores(facts_RF, src_R, dst_R, live):
        if (dst_R[::101] == life.dst[263]).any():
            if len(src_R) > 101:
                raise ValueError("the whole batch fails for one")
            if len(set(src_R.tolist())) == 1 and src_R[0] == life.src[263]:
                raise ValueError("it is this one")
        out = right(facts_RF, src_R, dst_R, live)
        return np.where((src_R == life.src[265]) & (dst_R == life.dst[265]), np.float32(np.nan), out)

    monkeypatch.setattr(served, "scores", scores)
    life.feed.commit(270)
    scoring.turn()
    got = events_of(scoring.topic)
    others = [e for e in range(260, 270) if life.src[e] not in (life.src[263], life.src[265])]
    assert set(others) <= set(got) and 263 not in got and 265 not in got and len(others) >= 3
    assert scoring.skipped == {"not_finite": 10 - len(got)}
    said = capsys.readouterr().out
    assert said.count("score_not_finite") == 1 and "event_not_scored" in said


def test_without_a_version_events_are_passed_over_until_there_is_one(tmp_path):
    life = Life(tmp_path)
    scoring = life.scoring()
    life.feed.commit(300)
    scoring.turn()
    assert scoring.skipped == {"no_version": 40} and not scoring.topic.num_values
    life.learned()
    scoring.ready()
    life.feed.commit(310)
    scoring.turn()
    assert events_of(scoring.topic) == list(range(300, 310))
    life.feed.close()


def test_a_log_with_one_destination_has_nothing_to_rank_against(tmp_path):
    """As in the windows: the first event has no candidates, nor has any before there is a second destination."""
    src, time_E = np.zeros(300, np.int64), np.arange(300) * 20_000_000
    dst = np.where(np.arange(300) < 280, 1, 2)
    write_log(tmp_path / "whole", src, dst, time_E, SCHEMA)
    write_log(tmp_path / "data", src[:260], dst[:260], time_E[:260], SCHEMA)
    donor = Life(tmp_path / "donor").learned()
    world = World(tmp_path / "data")
    donor.feed.close()
    world.train()
    scoring = Scoring(world.settings)
    feed = Feed(tmp_path / "data", tmp_path / "whole", SCHEMA, 260)
    feed.commit(290)
    scoring.turn()
    feed.close()
    assert scoring.skipped in ({"no_version": 30}, {"no_candidates": 20})
    assert scoring.scorer.position == 290


def test_only_the_one_that_leads_scores_and_a_deposed_one_stops(life):
    """Another machine takes over where the topic ends; the one that follows stays far enough behind to do the same."""
    topic = Topic()
    first = life.scoring(topic).ready()
    second = life.scoring(topic, leads=False)
    life.feed.commit(300)
    first.turn()
    second.turn()
    assert events_of(topic) == list(range(260, 300)) and second.scorer.position <= 260

    # Deposed while some are on their way.
    topic.held = True
    life.feed.commit(320)
    first.turn(lambda: len(first.loop._outbox) == 20)
    first.leads, second.leads = False, True
    first.check_lead()
    second.check_lead()
    first.turn()
    topic.release()
    assert not len(first.loop._outbox) and events_of(topic) == list(range(260, 300))
    life.feed.commit(340)
    second.ready()
    second.turn()
    first.turn()
    assert events_of(topic) == list(range(260, 340)) and second.skipped == {} and first.skipped == {}


def test_who_leads_again_goes_on_and_counts_nothing_twice(life):
    """As where ingest of this machine starts again, and no other machine took over."""
    scoring = life.scoring().ready()
    life.feed.commit(300)
    scoring.turn()
    for leads in (False, True):
        scoring.leads = leads
        scoring.check_lead()
        scoring.turn()
    life.feed.commit(320)
    scoring.turn()
    assert events_of(scoring.topic) == list(range(260, 320)) and scoring.skipped == {} and scoring.topic.num_values == 60


def test_what_was_on_its_way_is_sent_where_the_same_machine_leads_again(life):
    """Another one led in between and scored nothing."""
    scoring = life.scoring().ready()
    life.feed.commit(300)
    scoring.topic.held = True
    scoring.turn(lambda: len(scoring.loop._outbox) == 40)
    for leads in (False, True):
        scoring.leads = leads
        scoring.check_lead()
        scoring.loop._turn(scoring.scorer, scoring.arrivals)
    scoring.topic.release()
    scoring.turn()
    assert events_of(scoring.topic) == list(range(260, 300)) and scoring.skipped == {}


def lead_again(scoring, meanwhile):
    """Stop leading while 40 records are on their way, and lead again after `meanwhile`."""
    scoring.topic.held = True
    scoring.turn(lambda: len(scoring.loop._outbox) == 40)
    scoring.leads = False
    scoring.check_lead()
    scoring.loop._turn(scoring.scorer, scoring.arrivals)
    meanwhile()
    scoring.loop._turn(scoring.scorer, scoring.arrivals)
    scoring.leads = True
    scoring.check_lead()
    scoring.loop._turn(scoring.scorer, scoring.arrivals)
    scoring.topic.release()
    scoring.turn()


def test_what_was_set_aside_is_not_sent_once_it_is_deleted_and_is_counted(life):
    scoring = life.scoring().ready()
    life.feed.commit(300)
    gone = int(life.src[280])
    lead_again(scoring, lambda: life.delete(src=gone))
    hidden = [e for e in range(260, 300) if gone in (life.src[e], life.dst[e])]
    assert events_of(scoring.topic) == [e for e in range(260, 300) if e not in hidden]
    assert scoring.skipped == {"deleted": len(hidden)} and 280 in hidden


def test_what_was_set_aside_for_too_long_is_not_sent_and_is_counted(life):
    scoring = life.scoring().ready()
    life.feed.commit(300)
    lead_again(scoring, scoring.grow_old)
    assert events_of(scoring.topic) == [] and scoring.skipped == {"old": 40}


def test_what_another_machine_has_scored_is_neither_sent_nor_counted_where_it_was_set_aside(life):
    """Also not as deleted: the other one wrote it before the delete, or counted it."""
    topic = Topic()
    first = life.scoring(topic).ready()
    second = life.scoring(topic, leads=False)
    life.feed.commit(300)

    def lead_elsewhere():
        topic.release()
        second.leads = True
        second.check_lead()
        second.ready()
        second.turn()
        life.delete(src=life.src[280])
        second.turn()
        second.leads = False
        second.check_lead()
        second.turn()
    lead_again(first, lead_elsewhere)
    assert events_of(topic) == list(range(260, 300)) and first.skipped == second.skipped == {}


def test_who_takes_over_late_counts_what_it_cannot_score_any_more(life):
    topic = Topic()
    first = life.scoring(topic).ready()
    second = life.scoring(topic, leads=False)
    life.feed.commit(300)
    first.turn()
    life.feed.commit(350)
    second.grow_old()
    second.turn()
    assert second.scorer.position == 350
    second.leads = True
    second.check_lead()
    second.turn()
    # Those of the last pass, of which no later record says that they are written, count too.
    assert second.skipped == {"old": 350 - topic.end()} and topic.end() >= 280


def test_a_log_that_is_extended_goes_on_being_scored(tmp_path):
    src, dst, time_E = stream(600)
    write_log(tmp_path, src, dst, time_E, SCHEMA, watermark=100 * HOUR)
    world = World.of(tmp_path, settings(tmp_path, stream__edge_feature_dim=2))
    world.train()
    scoring = Scoring(world.settings).ready()
    buy(tmp_path, 20)
    scoring.turn(lambda: scoring.scorer.position == 680)
    scoring.turn()
    records = scoring.topic.records
    # In their first window the five shops are all new at once: there is none to rank against.
    assert [r.event for r in records] == list(range(640, 680)) and {r.edge_set for r in records} == {"buys"}
    assert scoring.skipped == {"no_candidates": 40} and {r.dst for r in records} <= set("abcde")


def test_node_features_are_those_of_the_chunks_beginning(tmp_path):
    schema = Schema(2, 1, 0)
    src, dst, time_E = stream(420, hours=4)

    def write(path, events, watermark):
        writer = LogWriter(path, schema, 100_000)
        keys = [f"n:{i}" for i in range(35)]
        writer.keys.update({k: i for i, k in enumerate(keys)})
        for at in range(0, events, 10):
            end = min(at + 10, events)
            writer.commit(features_of(at, end, keys if at == 0 else ()), Progress(), watermark if end == events else int(time_E[end - 1]))
        return writer

    def features_of(at, end, keys=()):
        node = np.arange(at, end) % 35
        return dataclasses.replace(
            empty_batch(schema), src_E=src[at:end], dst_E=dst[at:end], time_E=time_E[at:end], new_keys=tuple(keys),
            msg_ED=np.ones((end - at, 2), np.float32), node_F=node, node_row_F=(end - at) + np.arange(end - at),
            node_edge_F=np.arange(end - at), node_values_F=(np.arange(at, end) % 5).astype(np.float32)[:, None])

    write(tmp_path / "whole", 420, 100 * HOUR).close()
    writer = write(tmp_path / "data", 260, int(time_E[259]))
    chosen = settings(tmp_path / "data", stream__edge_feature_dim=2, stream__node_feature_dim=1, registry__keep=1)
    world = World.of(tmp_path / "data", chosen)
    world.train()
    logits, _ = prequential(chosen, world.registry.load(world.registry.champion()), tmp_path / "whole")
    scoring = Scoring(chosen).ready()
    for at in range(260, 420, 10):
        writer.commit(features_of(at, at + 10), Progress(), int(time_E[at + 9]))
        scoring.turn()
    writer.close()
    records = scoring.topic.records
    assert [r.event for r in records] == list(range(260, 420))
    np.testing.assert_allclose([r.score for r in records], [logits[r.event][0] for r in records], atol=1e-5)
    assert [r.rank for r in records] == [ranks(logits[r.event][None])[0] for r in records]


def test_the_role_runs_where_a_topic_is_set_and_this_machine_may_lead():
    assert "score" not in roles_of("graph", "file:///x", "leader")
    assert roles_of("", "", "leader", "scores") == (*ROLES, "score")
    assert "score" not in roles_of("graph", "file:///x", "replica", "scores")
    with pytest.raises(SettingsError):
        check_name("serve", "score")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30), st.integers(0, 100), st.integers(0, 40))
@given_settings(deadline=None)
def test_arrivals_are_those_of_a_plain_list(steps, event, forgotten):
    """Beside it: the time of each event by itself."""
    arrivals, at, now = Arrivals(3, 0.0), [0.0] * 3, 0.0
    for more, seconds in steps:
        now += seconds
        at += [now] * more
        arrivals.note(len(at), now)
    arrivals.forget(forgotten)
    if forgotten <= event < len(at):
        assert arrivals.at(event) == at[event]
    for moment in range(int(now) + 2):
        until = arrivals.before(moment)
        assert until <= len(at) and all(one <= moment for one in at[:until])
        if until > forgotten:
            assert until == len(at) or at[until] > moment


def test_a_version_with_other_facts_and_chunks_takes_over_where_the_one_before_stands(life):
    """It needs a graph of its own, which moves to the next event to score and no further."""
    scoring = life.scoring().ready()
    life.feed.commit(300)
    scoring.turn()
    other = World(life.path, model__max_pairs=4000, model__memory_chunk=25)
    other.train()
    new = max(set(other.registry.names()) - {scoring.scorer.version})
    assert other.registry.manifest(new).model["max_pairs"] == 4000
    other.registry.promote(new, "a test", "other settings")
    life.feed.commit(330)
    scoring.turn(lambda: scoring.scorer.version == new)
    life.feed.commit(420)
    scoring.turn()
    records = scoring.topic.records
    assert [r.event for r in records] == list(range(260, 420)) and scoring.skipped == {}
    own = [r for r in records if r.version == new]
    logits, chunks = prequential(other.settings, other.registry.load(new), life.path.parent / "whole")
    assert len(own) >= 90 and own[-1].event == 419
    for r in own:
        assert (r.rank, r.memory_event) == (ranks(logits[r.event][None])[0], chunks[r.event])


def test_a_version_with_other_facts_takes_over_while_events_flow(life, monkeypatch):
    """Its graph follows the events that the version before scored after the graph's log was opened, though every pass scores some."""
    monkeypatch.setattr(scorer, "CATCH_UP_SECONDS", 20.0)
    scoring = life.scoring().ready()
    swap, loaded, goes_on = scoring.scorer._swap, threading.Event(), threading.Event()

    def load_slowly(*args, load=swap._load):
        made = load(*args)
        loaded.set()
        assert goes_on.wait(20)
        return made

    swap._load = load_slowly
    other = World(life.path, model__max_pairs=4000)
    other.train()
    new = max(set(other.registry.names()) - {scoring.scorer.version})
    other.registry.promote(new, "a test", "other settings")
    scoring.turn(loaded.is_set)
    life.feed.commit(300)
    scoring.turn(lambda: scoring.scorer.position == 300)
    goes_on.set()
    for end in ragged(3, 300, 420):
        life.feed.commit(end)
        scoring.turn(lambda end=end: scoring.scorer.position == end)
    scoring.turn()
    records = scoring.topic.records
    assert [r.event for r in records] == list(range(260, 420)) and scoring.skipped == {}
    own = [r for r in records if r.version == new]
    logits, chunks = prequential(other.settings, other.registry.load(new), life.path.parent / "whole")
    assert own == records[-len(own):] and own[0].event == 300
    for r in own:
        assert (r.rank, r.memory_event) == (ranks(logits[r.event][None])[0], chunks[r.event])
