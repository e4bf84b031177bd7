import html
import json
import re
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from streamd.cli.maintenance import ages_of_facts, backtest_file
from streamd.errors import SettingsError, StreamdError
from streamd.evaluation.backtest import TITLES, Plan, backtest
from streamd.evaluation.freshness import StaleView
from streamd.evaluation.regimes import LEARNED, Regimes
from streamd.evaluation.report.forms import FORMS
from streamd.evaluation.report.html import as_html
from streamd.evaluation.verdict import verdict_of
from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.exchange.tables import Columns
from streamd.training.event_view import FreshView
from streamd.training.learner import Learner
from streamd.training.measures import measures
from streamd.training.recorder import Recorder
from streamd.windows import recorded_windows
from streamd.windows.novelty import Novelty
from tests.builders import HOUR, learning, settings, stream, write_log

HOURS = 60
real = Learner.score


def world(path, num_edges=900, **values):
    write_log(path, *stream(num_edges, hours=HOURS), Schema(2, 0, 0))
    log = LogReader.open(path)
    return settings(path, stream__edge_feature_dim=2, **values), log


def test_a_backtest_reports_every_window_after_the_initial_part_under_every_regime(tmp_path):
    s, log = world(tmp_path)
    result = backtest(learning(s), log, Plan(0.3, 0, (10, None)))
    assert result.names() == ["live", "no_replay", "nightly", "nightly_live", "frozen", "rule", "edgebank", "popularity"]
    assert sum(w.window.num_edges for w in result.windows) == 900 - result.windows[0].window.first_edge
    assert 270 <= result.windows[0].window.first_edge < 300
    assert result.mean("live")["mrr"] > result.mean("edgebank")["mrr"]
    assert result.stale[0] == result.mean("live") and result.stale[None]["mrr"] < result.stale[10]["mrr"] < result.stale[0]["mrr"]


def test_mrr_is_told_by_what_was_new_and_over_the_same_events_however_old_facts_are(tmp_path):
    s, log = world(tmp_path)
    result = backtest(learning(s), log, Plan(0.0, 0, (200,)))
    head, events, *rows = result.novelty_table()
    assert head[1:] == ["all", "pair\nseen", "pair\nnew", "destination\nnew", "source\nnew"]
    num_events, seen, new, no_destination, no_source = (int(n.replace(",", "")) for n in events[1:])
    assert num_events == seen + new == result.num_events and seen > new > no_destination > 0 and no_source > 0
    assert [row[0] for row in rows] == [*(TITLES[name] for name in result.names()), "live, facts 200 events old"]
    for mean in (*(result.mean(name) for name in result.names()), result.stale[200]):
        parts = mean["mrr_pair_seen"] * seen + mean["mrr_pair_new"] * new
        assert parts / num_events == pytest.approx(mean["mrr"])
        others = mean["mrr_known"] * (num_events - no_destination) + mean["mrr_destination_new"] * no_destination
        assert others / num_events == pytest.approx(mean["mrr"])
    assert result.mean("edgebank")["mrr_pair_seen"] > 2 * result.mean("edgebank")["mrr_pair_new"]


def test_what_is_learned_at_once_is_where_all_regimes_begin(tmp_path):
    s, log = world(tmp_path)
    run = Regimes(learning(s), log, ("live", "frozen"), 300, 3)
    scored = [r for w in recorded_windows(log, HOUR) if (r := run.window(w)) is not None]
    assert scored[0].window.first_edge >= 300 and scored[0].scores["live"] == scored[0].scores["frozen"]
    assert scored[-1].scores["live"] != scored[-1].scores["frozen"]
    assert scored[0].scores["live"]["mrr"] > scored[0].scores["rule"]["mrr"] - 0.1
    assert run.learners["frozen"].num_learned == 1


def test_regimes_that_are_alike_at_first_score_as_if_each_ran_by_itself(tmp_path, monkeypatch):
    s, log = world(tmp_path)

    def played():
        run = Regimes(learning(s), log, LEARNED, 300)
        return [run.window(w) for w in recorded_windows(log, HOUR)]

    together = played()
    monkeypatch.setattr("streamd.evaluation.regimes.ALIKE", {})
    for one, other in zip(together, played(), strict=True):
        assert one.scores == other.scores and one.seconds.keys() == other.seconds.keys()
    assert together[-1].scores["frozen"] != together[-1].scores["live"]
    assert together[-1].scores["nightly"] != together[-1].scores["nightly_live"]
    assert all(w.seconds["frozen"] > 0 for w in together)


def test_an_initial_part_inside_one_window_is_learned_but_for_its_first_twentieth(tmp_path):
    s, log = world(tmp_path)
    run = Regimes(learning(s), log, ("live", "frozen"), 300, 3)
    first, second = recorded_windows(log, HOURS // 2 * HOUR)
    assert first.end_edge > 300, "the initial part ends inside the first window"
    assert run.window(first) is None
    seen = [chunk.inputs.event_E for chunk in run.base.chunks if chunk is not None]
    assert int(torch.cat(seen).min()) == 15 and int(torch.cat(seen).max()) == first.end_edge - 1
    scored = run.window(second)
    assert run.learners["frozen"].num_learned == 1 and scored.scores["live"] == scored.scores["frozen"]
    assert abs(scored.scores["live"]["mrr"] - scored.scores["rule"]["mrr"]) > 0.01


def test_stale_facts_are_those_of_the_first_event_of_their_group(tmp_path):
    """EdgeBank by hand: a pair counts as seen if it was seen before the group of `age` events its event is in."""
    s, log = world(tmp_path, 300)
    src, dst, _ = log.edges(0, 300)
    for age in (7, 40, None):
        recorder, window = Recorder(learning(s), log), list(recorded_windows(log, 20 * HOUR))[1]
        recorder.rebuild(window.first_edge)
        recorder.view = StaleView(FreshView(recorder.live), recorder.live, age)
        for chunk in recorder.chunks(window):
            first, facts = chunk.edges.first_edge, chunk.score.facts_ECF.numpy()
            for row, event in enumerate(chunk.score.event_E.tolist()):
                known = window.first_edge if age is None else first + (event - first) // age * age
                seen = ((src[:known] == src[event]) & (dst[:known] == dst[event])).any()
                assert (facts[row, 0, 6] < 20) == seen, (age, event)
        assert recorder.edge == window.end_edge, "afterwards the state is behind the window"


def test_a_report_has_every_regime_every_plot_and_loads_nothing(tmp_path):
    write_log(tmp_path / "log", *stream(900, hours=HOURS), Schema(2, 0, 0))
    said = []
    s = settings(tmp_path / "log", stream__edge_feature_dim=2, model__name="pair")
    (table, _, verdict), report = backtest_file(s, None, Columns(), Plan(0.3, 2, (10, None)), lambda *part: said.append(part))
    assert table.row_count == 10 and [d == n for run, d, n, _ in said if run == "fresh facts"][-2:] == [False, True]
    page = html.unescape(as_html(report)).replace("\xa0", " ").replace("</p><p>", " ")
    titles = ("live without replay", "frozen weights, live state", "EdgeBank", "facts 10 events old")
    assert page.count("<svg") == 2 * 2 and page.count("<i style") == 5 and all(t in page for t in (verdict, *titles))
    assert not re.search(r"https?://|<script|url[(]|@import", page)
    assert all(np.isfinite(float(v)) for points in re.findall(r'points="([^"]+)"', page) for p in points.split() for v in p.split(","))


def test_a_file_is_backtested_without_a_data_directory(tmp_path):
    src, dst, time = stream(400, hours=48)
    rows = "".join(f"{u},{v},{t // 1_000_000}\n" for u, v, t in zip(src.tolist(), dst.tolist(), time.tolist(), strict=True))
    (tmp_path / "events.csv").write_text("who,what,when\n" + rows)
    s = settings(tmp_path / "none", stream__time_unit="s", model__name="pair")
    (table, _, verdict), _ = backtest_file(s, tmp_path / "events.csv", Columns("who", "what", "when"), Plan(), lambda *_: None)
    assert re.match(r"Live \w+ .*the best rule \(.*; it .*nightly.*; .*state.* learning", verdict)
    assert table.row_count == 8 and not (tmp_path / "none").exists()
    assert re.search(r"; the whole file has times 1970-01-01T00:\S+Z to 1970-01-02T23:\S+Z, read as seconds\. Nightly models first ", str(table.caption))


@pytest.mark.parametrize("stale", ["5,x", "-1", "41"])
def test_an_age_that_cannot_be_is_named(stale):
    assert ages_of_facts("5, 40,window", 40) == (5, 40, None)
    with pytest.raises(SettingsError, match="--stale"):
        ages_of_facts(stale, 40)


def test_windows_can_begin_with_the_first_event_reported_on(tmp_path):
    s, log = world(tmp_path)
    first, *rest = backtest(learning(s), log, Plan(0.3, 1, from_cut=True)).windows
    begin = int(log.time_of(np.array([first.window.first_edge]))[0])
    assert first.window.start_us == begin and first.window.first_edge == 270
    assert all((w.window.start_us - begin) % HOUR == 0 for w in rest)


def test_replay_has_a_row_of_its_own_where_there_is_any(tmp_path):
    s, log = world(tmp_path, 400)
    with_replay, without = (backtest(learning(settings(tmp_path, stream__edge_feature_dim=2, training__replay=how)), log, Plan())
                            for how in ("uniform", "none"))
    assert "no_replay" in with_replay.names() and "no_replay" not in without.names()
    assert with_replay.mean("no_replay") == without.mean("live") != with_replay.mean("live")
    run = Regimes(learning(s), log, ("live", "no_replay"), 100, 1)
    for window in list(recorded_windows(log, HOUR))[:25]:
        run.window(window)
    assert run.learners["no_replay"].draw(300, 40) == () != run.learners["live"].draw(300, 40)


def test_the_interval_of_a_row_is_that_of_the_same_windows_under_both(tmp_path):
    s, log = world(tmp_path)
    result = backtest(learning(s), log, Plan())
    by = result.difference("live", "edgebank")
    assert np.isclose(by.mean, result.mean("live")["mrr"] - result.mean("edgebank")["mrr"]) and by.num_windows == len(result.windows)
    cells = {row[0]: row[-1] for row in result.table()}
    assert cells["EdgeBank"] == by.text(4) and cells["live"] == "" and " ± " in cells["popularity"]


def test_windows_of_a_day_are_compared_without_a_nightly_model(tmp_path):
    write_log(tmp_path, *stream(900, hours=20 * 24), Schema(2, 0, 0))
    s = settings(tmp_path, stream__edge_feature_dim=2, model__name="pair", windows__width_seconds=86_400)
    result = backtest(learning(s), LogReader.open(tmp_path), Plan())
    assert "nightly" not in result.names()
    assert re.search(r"^Live \w+ .*; it is not compared with nightly, since windows are a day or longer; learning .* over frozen weights\. An event had 1\d\.\d negatives", verdict_of(result))


def hours(path, first, last, num_edges=600, **values):
    """A backtest of the events of some hours of a day and the next one, and its report in each form."""
    src, dst, time = stream(num_edges, hours=last - first)
    write_log(path, src, dst, time + first * HOUR, Schema(2, 0, 0))
    s = settings(path, stream__edge_feature_dim=2, model__name="pair", **values)
    told, report = backtest_file(s, None, Columns(), Plan(), lambda *_: None)
    return told, report, {form: write(report) for form, write in FORMS.items()}


def test_a_stream_without_a_midnight_has_no_nightly_model(tmp_path):
    """It would answer as the rule does all along, and live would beat it by what learning anything brings."""
    told, report, forms = hours(tmp_path, 2, 22)
    assert re.search(r"^Live \w+ .*; it is not compared with nightly, since no midnight \(UTC\) is before any of the windows; learning .* over frozen weights\. An event had 1\d\.\d negatives", told[-1])
    assert "no midnight (UTC) is before any of the windows" in report.about and "no midnight" in told[0].caption
    assert "nightly" not in json.loads(forms["json"])["means"] and "| nightly" not in forms["md"]
    assert all("nightly weights" not in text for text in forms.values())


def test_live_is_compared_with_nightly_models_that_have_learned(tmp_path):
    told, report, forms = hours(tmp_path, 0, 50, 900)
    by = json.loads(forms["json"])["live_better_by_mrr"]
    assert by["nightly"]["windows"] == by["nightly_live"]["windows"] == 26 < by["frozen"]["windows"]
    count = by["frozen"]["windows"] - 26
    assert f"leaves out {count} windows before it" in report.about and re.search(r"; it (beats|is level with|loses to) nightly[, ].*; .*state.*learning", told[-1])

    # Of two hours behind midnight nothing can be told yet.
    told, _, forms = hours(tmp_path / "short", 4, 26)
    assert json.loads(forms["json"])["live_better_by_mrr"]["nightly"]["windows"] == 2
    assert "it is not compared with nightly, since only 2 windows came after a midnight (UTC), of 12; learning" in told[-1]


def test_one_window_is_too_few_in_each_form(tmp_path):
    told, report, forms = hours(tmp_path, 3, 5, 80)
    assert told[-1].startswith("1 window is too few") and " in 1 window, " in report.about and " in 1 window, " in told[0].caption
    assert all("1 window is too few" in text and "nan" not in text.lower() and "inf" not in text for text in (forms["md"], forms["json"]))
    assert "1 window is too few" in forms["html"] and ">nan<" not in forms["html"]
    assert json.loads(forms["json"])["live_better_by_mrr"]["frozen"] == {"mean": ANY, "radius": None, "windows": 1}


def test_what_no_event_counts_for_is_a_dash(tmp_path):
    """Every destination is new, so that there is no MRR over known ones."""
    write_log(tmp_path, np.zeros(300, np.int64), np.arange(1, 301), np.arange(300) * HOUR // 10, Schema(2, 0, 0))
    s = settings(tmp_path, stream__edge_feature_dim=2, model__name="pair")
    _, report = backtest_file(s, None, Columns(), Plan(), lambda *_: None)
    assert all(row[2] == "-" for row in report.tables[0].rows) and all(np.isfinite(float(row[1])) for row in report.tables[0].rows)
    assert json.loads(FORMS["json"](report))["means"]["live"]["mrr_known"] is None and "nan" not in FORMS["md"](report)


def test_weights_that_are_not_numbers_lose_to_a_rule(tmp_path, monkeypatch):
    """A score that is NaN ranks last, of 15 candidates; the sentence has numbers all the same."""
    monkeypatch.setattr(Learner, "score", lambda self, chunk: np.full_like(real(self, chunk), np.nan))
    told, report, forms = hours(tmp_path, 0, 50, 900)
    assert told[-1].startswith("Live loses to the best rule") and "nan" not in told[-1]
    assert json.loads(forms["json"])["means"]["live"]["mrr"] == pytest.approx(1 / 15) and "nan" not in forms["md"]


def test_too_few_events_are_said(tmp_path):
    write_log(tmp_path, *stream(5, hours=1), Schema(2, 0, 0))
    with pytest.raises(StreamdError, match=r"No window could be scored: the 5 events cover [0-9]+ min.* and a window 60 min;.*check the unit"):
        backtest_file(settings(tmp_path, stream__edge_feature_dim=2), None, Columns(), Plan(), lambda *_: None)


def test_the_measures_of_a_window_weigh_as_many_events_as_it_has(tmp_path):
    s, log = world(tmp_path)
    result = backtest(learning(s), log, Plan())
    weight = [w.num_scored for w in result.windows]
    assert np.isclose(result.mean("rule")["ap"], np.average([w.scores["rule"]["ap"] for w in result.windows], weights=weight))
    known = [w.num_known for w in result.windows]
    assert np.isclose(result.mean("rule")["mrr_known"],
                      np.average([w.scores["rule"]["mrr_known"] for w in result.windows], weights=known))
    assert set(measures(np.zeros((3, 101), np.float32), Novelty(*np.ones((3, 3), bool)))) <= set(result.mean("rule"))


def test_two_destinations_are_two_candidates_and_their_number_is_said(tmp_path):
    src, dst, time = stream(500, num_items=2, hours=HOURS)
    write_log(tmp_path, src, dst, time, Schema(2, 0, 0))
    s = settings(tmp_path, stream__edge_feature_dim=2, model__name="pair")
    told, report = backtest_file(s, None, Columns(), Plan(), lambda *_: None)
    said = json.loads(FORMS["json"](report))
    assert said["mean_negatives"] == 1 and all(0.5 <= m["mrr"] <= 1 and m["hits10"] == 1 for m in said["means"].values())
    for text in (told[-1], said["verdict"]):
        assert text.endswith("An event had 1.0 negatives on average, not 100, as few destinations were known: "
                             "compare its MRR with that of the rules here, not with other streams.")
    assert "MRR and Hits@10 are against 1.0 negatives on average, AP" in report.about


def test_of_enough_destinations_no_number_is_said(tmp_path):
    src, dst, time = stream(1200, num_items=140, hours=30)
    dst[:140] = 20 + np.arange(140)
    write_log(tmp_path, src, dst, time, Schema(2, 0, 0))
    told, report = backtest_file(settings(tmp_path, stream__edge_feature_dim=2, model__name="pair"), None, Columns(), Plan(), lambda *_: None)
    assert report.data["mean_negatives"] == 100 and "negatives" not in told[-1] and "are against 100 negatives" in report.about


def test_of_one_destination_there_is_nothing_to_rank(tmp_path):
    src, _, time = stream(100, hours=HOURS)
    write_log(tmp_path, src, np.full(100, 25), time, Schema(2, 0, 0))
    with pytest.raises(StreamdError, match="all events have one destination: nothing to rank"):
        backtest_file(settings(tmp_path, stream__edge_feature_dim=2, model__name="pair"), None, Columns(), Plan(), lambda *_: None)
