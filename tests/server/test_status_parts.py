"""The parts of the status page's content: headline, dead letters, pulse."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, empty_batch
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from streamd.server.page.dead_letters import DeadLettersOnPage
from streamd.server.page.headline import headline_of
from streamd.server.page.newest_events import newest_events
from streamd.server.page.pulse import NUM_SAMPLES, Pulse, buckets_of, less, quantile
from streamd.server.page.window_rows import edge_sets, window_row
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.windows.history import SetScores, WindowRecord
from streamd.windows.means import rules_of
from streamd.windows.over_rule import are_newest_worse
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World


def record(start, num_scored, **scores):
    return WindowRecord(start_us=start, end_us=start + 1, first_edge=0, end_edge=num_scored, num_scored=num_scored, version="v", scored_by="v",
                        promoted=True, reason="", scores=scores, loss=None, seconds={}, finished_at=0.0)


def of(mrr, **more):
    return {"mrr": mrr, **more}


def test_the_headline_weighs_windows_by_their_events_and_compares_over_the_same_ones():
    records = [record(0, 100, live=of(0.9), edgebank=of(0.1), popularity=of(0.3)),
               record(1, 300, live=of(0.5), edgebank=of(0.5), popularity=of(0.1), nightly=of(0.4, mrr_live=0.6, events=50.0)),
               record(2, 0), record(3, 100, live=of(0.1), edgebank=of(0.1), popularity=of(0.1), nightly=of(0.2, mrr_live=0.2, events=150.0))]
    head = headline_of(records)
    assert head.num_windows == 3 and head.num_events == 500 and head.live == pytest.approx((90 + 150 + 10) / 500)
    assert head.rule_name == "edgebank" and head.rule == pytest.approx((10 + 150 + 10) / 500) and not head.is_below_rule
    assert head.content()["over_rule"] == {"mean": pytest.approx(0.16), "radius": None}, "three windows are too few to tell"
    assert head.nightly == pytest.approx((0.4 * 50 + 0.2 * 150) / 200) and head.live_beside == pytest.approx((0.6 * 50 + 0.2 * 150) / 200)
    below = headline_of([record(i, 5, live=of(0.1), edgebank=of(0.2), popularity=of(0.1)) for i in range(12)])
    assert below.is_below_rule and below.notice() == "the model ranks below the rule edgebank over the last 12 windows"
    assert head.notice() == ""
    assert head.mean_negatives is None, "of older releases"
    counted = [records[0], replace(records[1], mean_negatives=4.0), replace(records[3], mean_negatives=8.0)]
    assert headline_of(counted).content()["mean_negatives"] == pytest.approx((4 * 300 + 8 * 100) / 400)


def rules(rule, edgebank=0.0, popularity=0.0):
    return {"rule": of(rule), "edgebank": of(edgebank), "popularity": of(popularity)}


def test_the_best_rule_is_the_one_with_the_highest_mean_and_windows_of_older_releases_do_not_count_beside_it():
    old = [record(0, 900, live=of(0.9), edgebank=of(0.1), popularity=of(0.3))]
    new = [record(i, 100, live=of(0.6), **rules(0.53, edgebank=0.11)) for i in range(1, 6)]
    head = headline_of(old * 3)
    assert (head.rule_name, head.rule, head.num_windows) == ("popularity", pytest.approx(0.3), 3), "the rule is unknown: the best of the others"
    head = headline_of(old + new)
    assert (head.rule_name, head.num_windows, head.num_events) == ("rule", 5, 500), "model and rule over the same events"
    assert head.rule == pytest.approx(0.53) and head.live == pytest.approx(0.6) and not head.is_below_rule
    assert headline_of([record(i, 10, live=of(0.2), **rules(0.3, edgebank=0.1)) for i in range(12)]).content()["below_rule"], "though it is above EdgeBank"
    assert rules_of(old[0].scores) == ["edgebank", "popularity"] and rules_of({}) == []


@pytest.mark.parametrize(("newest", "rule", "below", "fell"), [
    ([0.6, 0.6, 0.6], 0.3, False, False), ([0.08, 0.08, 0.08], 0.3, True, True), ([0.25, 0.25, 0.25], 0.2, False, True),
    ([0.5, 0.5, 0.5], 0.55, True, False), ([0.6, 0.6, 0.01], 0.3, False, False)])
def test_a_fall_of_the_newest_three_windows_is_said_though_the_mean_of_all_is_high(newest, rule, below, fell):
    before = [record(i, 100, live=of(0.6), **rules(0.3)) for i in range(20)]
    few = [record(20 + i, 100, live=of(mrr), **rules(0.0, popularity=rule)) for i, mrr in enumerate(newest)]
    head = headline_of([*before, *few, record(30, 0)])
    assert head.newest.num_windows == 3 and head.newest.live == pytest.approx(np.mean(newest))
    assert head.newest.rule_name == "popularity" and head.newest.rule == pytest.approx(rule)
    assert not head.is_below_rule and (head.is_newest_below_rule, head.has_fallen) == (below, fell)
    content = head.content()
    assert (content["newest_below_rule"], content["fell"], content["newest"]["live"]) == (below, fell, head.newest.live)


def known(mrr_all, mrr_known):
    return {"mrr": mrr_all, "mrr_known": mrr_known}


def of_new_ones(i, live=0.4, num_known=40):
    """A window of 100 events in which the model ranks as the rule does, and new destinations by their rate."""
    scores = {"rule": known(0.2, 0.4), "edgebank": known(0.1, 0.2), "popularity": known(0.1, 0.1)}
    return replace(record(i, 100, live=known(0.5, live), **scores), num_known=num_known)


def test_model_and_rule_compare_over_the_events_whose_destination_was_known():
    """No negative is new, so that a model gains over all events by any score that it gives to new ones."""
    records = [of_new_ones(i) for i in range(24)]
    head = headline_of(records).content()
    assert head["over_rule"] == {"mean": pytest.approx(0), "radius": pytest.approx(0)} and not head["below_rule"]
    assert (head["measure"], head["num_compared"], head["num_events"]) == ("mrr_known", 24 * 40, 2400)
    assert (head["live"], head["rule"], head["live_all"]) == (pytest.approx(0.4), pytest.approx(0.4), pytest.approx(0.5))
    assert headline_of([of_new_ones(i, live=0.3) for i in range(24)]).is_below_rule, "though it is above it over all events"
    fell = headline_of([*records[3:], *(of_new_ones(i, live=0.1) for i in range(3))])
    assert fell.is_newest_below_rule and fell.newest.live == pytest.approx(0.1)

    # Windows weigh the events that count.
    few = headline_of([of_new_ones(0, live=0.4, num_known=30), of_new_ones(1, live=0.8, num_known=10)])
    assert few.live == pytest.approx(0.5) and few.num_compared == 40


def test_windows_without_a_known_destination_count_only_where_none_has_one():
    bare = [record(i, 100, live=of(0.9), **rules(0.8)) for i in range(5)]
    alone = headline_of(bare)
    assert (alone.measure, alone.num_windows, alone.num_compared, alone.live) == ("mrr", 5, 500, pytest.approx(0.9))
    mixed = headline_of([*bare, of_new_ones(5), record(6, 100, live=of(0.9), **rules(0.8))])
    assert (mixed.measure, mixed.num_windows, mixed.live) == ("mrr_known", 1, pytest.approx(0.4))
    half = replace(bare[0], num_known=50, scores=bare[0].scores | {"live": known(0.9, 0.7)})
    assert headline_of([half]).measure == "mrr", "the rules of that window do not have it"


def test_live_stands_beside_the_nightly_twin_by_the_measure_that_the_twin_has():
    old = replace(of_new_ones(0), scores=of_new_ones(0).scores | {"nightly": of(0.2, mrr_live=0.5, events=100.0)})
    twin = {**known(0.1, 0.3), "mrr_live": 0.5, "mrr_live_known": 0.35, "events": 100.0, "events_known": 40.0}
    new = replace(of_new_ones(1), scores=of_new_ones(1).scores | {"nightly": twin})
    assert (headline_of([old]).nightly, headline_of([old]).live_beside) == (0.2, 0.5)
    assert (headline_of([old, new]).nightly, headline_of([old, new]).live_beside) == (pytest.approx(0.3), pytest.approx(0.35))


def test_a_window_on_the_page_says_by_which_measure_its_models_compare():
    assert window_row(of_new_ones(0))["compared_by"] == "mrr_known"
    old = replace(of_new_ones(0), scores=of_new_ones(0).scores | {"nightly": of(0.2)})
    assert window_row(old)["compared_by"] == "mrr" and window_row(record(0, 0))["mrr"] == {}


def test_three_windows_are_no_others_than_the_newest_three():
    head = headline_of([record(i, 100, live=of(0.1), **rules(0.3)) for i in range(3)])
    assert head.newest is None and not head.is_below_rule and not head.is_newest_below_rule and not head.has_fallen


@pytest.mark.parametrize("lead", [0.002, -0.002])
def test_differences_that_chance_explains_make_no_model_worse_and_no_newest_windows(lead):
    gaps = np.random.default_rng(0).normal(0, 0.02, 24)
    gaps += lead - gaps.mean()
    head = headline_of([record(i, 100, live=of(0.4 + gap), **rules(0.0, popularity=0.4)) for i, gap in enumerate(gaps)])
    over = head.content()["over_rule"]
    assert over["mean"] == pytest.approx(lead) and 0.003 < over["radius"] < 0.03 and not head.is_below_rule
    newest = [record(24 + i, 100, live=of(0.37), **rules(0.0, popularity=0.4)) for i in range(3)]
    before = [record(i, 100, live=of(0.4 + gap), **rules(0.0, popularity=0.4)) for i, gap in enumerate(gaps)]
    assert [are_newest_worse([*before, *newest[:n]], n, "popularity") for n in (1, 3)] == [False, True], "three windows of such a gap are no chance, one is"
    assert not are_newest_worse([*before[:11], *newest], 3, "popularity"), "too few windows before them"


def test_an_edge_set_has_the_best_of_its_own_rules():
    def parts(**of_set):
        return {name: SetScores(num_scored=n, scores={"live": of(live), **by_rule}) for name, (n, live, by_rule) in of_set.items()}

    lone = {"edgebank": of(0.9), "popularity": of(0.1)}
    records = [replace(record(i, 40), edge_sets=sets) for i, sets in enumerate([
        parts(views=(30, 0.9, lone)), parts(views=(30, 0.5, rules(0.4)), buys=(10, 0.2, rules(0.1, popularity=0.5))),
        parts(views=(10, 0.1, rules(0.3, edgebank=0.2)))])]
    views, buys = edge_sets(records)
    assert views == {"name": "views", "scored": 40, "compared": 40, "mrr": pytest.approx(0.4), "rule_name": "rule", "rule": pytest.approx(0.375),
                     "newest_mrr": 0.1, "newest_rule": 0.3, "recurrence": None, "negatives": None, "below_rule": False, "newest_below_rule": False}
    assert (buys["rule_name"], buys["rule"], buys["mrr"]) == ("popularity", 0.5, 0.2)
    (buys,) = edge_sets([replace(record(i, 10), edge_sets=parts(buys=(10, 0.2, rules(0.1, popularity=0.5)))) for i in range(13)])
    assert buys["below_rule"] and buys["newest_below_rule"], "over enough windows to tell"


def test_without_a_scored_window_there_is_no_headline_and_without_a_twin_no_night():
    assert headline_of([]) is None and headline_of([record(0, 0)]) is None
    head = headline_of([record(i, 10, live=of(i / 100), edgebank=of(0.0), popularity=of(0.0)) for i in range(40)])
    assert head.nightly is None and head.live == pytest.approx(np.mean([i / 100 for i in range(16, 40)])), "the newest windows count"


def letter(reason, offset, value=b"{}"):
    return DeadLetter("events", 1, offset, -1, reason, f"{reason} at {offset}", 5, value)


def test_dead_letters_are_counted_by_reason_with_their_newest_example(tmp_path):
    assert DeadLettersOnPage(tmp_path).content() == []
    store, letters = LocalDeadLetters(tmp_path / "deadletter", 1 << 20), DeadLettersOnPage(tmp_path)
    for i in range(3):
        store.add(letter("bad_time", i))
    store.add(letter("late", 9, b"\xff" * 1000))
    store.flush()
    got = letters.content()
    assert [(x["reason"], x["count"]) for x in got] == [("bad_time", 3), ("late", 1)]
    assert got[0]["example"]["error"] == "bad_time at 2" and len(got[1]["example"]["value"]) == 300
    with (tmp_path / "deadletter/current.jsonl").open("ab") as file:
        file.write(b'{"reason": 1}\nnot json\n[]\n{"reason": "late", "value_bas')
    assert letters.content() == got, "lines that are no letters, or are still written, are passed over"
    store.add(letter("late", 10))
    store.flush()
    assert {x["reason"]: x["example"]["offset"] for x in letters.content()} == {"bad_time": 2, "late": 10}


def test_quantiles_are_those_of_what_was_observed_between_two_looks():
    histogram = Histogram("one", "of a test", ["route"], buckets=(0.001, 0.01, 0.1), registry=CollectorRegistry())
    histogram.labels("/v1/score").observe(5)
    before = buckets_of(histogram, ("/v1/",))
    for seconds in [0.005] * 98 + [0.05] * 2:
        histogram.labels("/v1/score").observe(seconds)
    histogram.labels("/other").observe(3)
    seen = less(buckets_of(histogram, ("/v1/",)), before)
    assert seen[float("inf")] == 100 and 0.001 < quantile(seen, 0.5) < 0.01 < quantile(seen, 0.99) < 0.1
    assert quantile({}, 0.5) is None and quantile({1.0: 0.0, float("inf"): 2.0}, 0.5) == 1.0, "beyond the last bound it is the last bound"


def test_the_pulse_keeps_ten_minutes():
    pulse = Pulse(lambda: 7.5, lambda: None)
    assert pulse.content() == {}
    metrics.request_seconds.labels("/v1/score").observe(0.004)
    for _ in range(NUM_SAMPLES + 5):
        pulse.sample()
    got = pulse.content()
    assert {len(v) for v in got.values()} == {NUM_SAMPLES} and got["events_per_second"][0] == 7.5 and got["lag_seconds"][0] is None
    assert got["p50_ms"][-1] is None, "nothing was asked since"
    metrics.request_seconds.labels("/v1/score").observe(0.004)
    pulse.sample()
    assert 1 < pulse.content()["p50_ms"][-1] < 10 and pulse.content()["answers_per_second"][-1] == 0.2


def test_the_newest_events_are_listed_newest_first_without_deleted_ones(tmp_path):
    assert newest_events(None) == []
    write_log(tmp_path, np.arange(20), np.arange(20)[::-1].copy(), np.arange(20) * 1000, SCHEMA, watermark=HOUR)
    log = LogReader.open(tmp_path)
    found = newest_events(log)
    assert [x["id"] for x in found] == list(range(19, 11, -1))
    assert found[0] == {"id": 19, "src": "n:19", "dst": "n:0", "edge_set": "default", "time_us": 19_000}
    with closing(LogWriter(tmp_path, SCHEMA, 100_000)) as writer:
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = 18, -1, -1
        writer.commit(replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), HOUR)
    log.refresh()
    assert [x["id"] for x in newest_events(log)] == [19, 17, 16, 15, 14, 13, 12]


def test_the_lag_of_an_idle_stream_is_zero_and_of_one_that_is_behind_or_unknown_is_not(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(50), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path).start()
    try:
        page, beat = world.state.page, Heartbeat(tmp_path, "ingest")
        monkeypatch.setattr(page._engine, "lag_seconds", lambda: 0.7)

        def lag(**detail):
            beat.touch(f"running {detail}", **detail)
            return page._lag_seconds()

        assert page._lag_seconds() == 0.7, "ingest has told nothing"
        assert lag(behind={}, broker_age_seconds=2.0) == 0.0
        assert lag(behind={"events": {0: 60}}, broker_age_seconds=2.0) == 0.7
        assert lag(behind={}, broker_age_seconds=11.0) == 0.7, "Kafka may have more"
        monkeypatch.setattr(world.engine, "_report", lambda follower: None)
        monkeypatch.setattr(world.engine.status, "edge", 49)
        assert lag(behind={}, broker_age_seconds=1.0) == 0.7, "the server lacks an event"
    finally:
        world.stop()
