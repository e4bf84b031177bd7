"""The demo end to end: its streams, player, comparisons, table and what it says of itself."""

import csv
import gzip
import io
import json
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kafka import TopicPartition
from rich.console import Console

from streamd.clock import SystemClock
from streamd.decode.decoder import make_decoder
from streamd.demo import play
from streamd.demo.baselines import Baselines
from streamd.demo.broker import find_broker, free_port
from streamd.demo.days_table import COLUMNS, Row, render, rows
from streamd.demo.player import MAX_WINDOWS_IN_FLIGHT, Player
from streamd.demo.role_reader import display, reason_to_wait
from streamd.demo.standin import StandIn
from streamd.demo.streams import DATA, DAY, STREAMS, find_stream
from streamd.demo.trial_users import MAX_ASKED, REMARK, SimulatedUsers, print_trial, trial_settings
from streamd.errors import DemoError
from streamd.evaluation.regimes import RegimeWindow, best_half_life
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.graph.facts.columns import NUM_HALF_LIVES
from streamd.ingest.dead_letters.sinks import make_dead_letters
from streamd.ingest.kafka.client import make_consumer, make_producer
from streamd.ingest.loop import IngestLoop
from streamd.settings.kafka_settings import KafkaSettings
from streamd.settings.loading import load_settings, schema_of
from streamd.telemetry import progress
from streamd.telemetry.heartbeat import Heartbeat
from streamd.windows import Window
from streamd.windows.history import WindowRecord
from tests.builders import HOUR, Record, learning, settings, spell, stream, write_log


@pytest.mark.parametrize(("name", "events", "features"), [("wikipedia", 157_474, 0), ("taxi", 68_207, 14), ("mathoverflow", 10_595, 0)])
def test_a_stream_is_whole_sorted_and_in_windows(name, events, features):
    s = find_stream(name)
    windows = list(s.windows(None))
    times = [e.time for batch in windows for e in batch]
    assert len(times) == events and times == sorted(times)
    assert all(len({e.time // s.window_seconds for e in batch}) == 1 for batch in windows)
    assert len(json.loads(windows[0][0].value).get("features", [])) == features


@pytest.mark.parametrize("name", STREAMS)
def test_a_month_that_ends_at_a_midnight_is_the_recording_some_whole_days_later(name):
    s, midnight = find_stream(name), 20_000 * DAY
    for days in (None, 2, 40):
        recorded, played = [*s.windows(days)], [*s.windows(days, midnight)]
        later_by = played[0][0].time - recorded[0][0].time
        assert later_by % DAY == 0 and midnight - DAY <= played[-1][-1].time < midnight
        for then, now in zip(recorded, played, strict=True):
            assert [e.time + later_by for e in then] == [e.time for e in now]
        body = json.loads(played[0][0].value)
        assert body == json.loads(recorded[0][0].value) | {"time": played[0][0].time}


@pytest.mark.parametrize("name", STREAMS)
def test_every_record_of_the_demo_becomes_the_event_it_was_made_of(name):
    s = find_stream(name)
    read = load_settings(None, s.settings("t"), {})[0]
    plain = read.model_copy(update={"sources": (), "stream": read.stream.model_copy(update={"time_unit": "s"})})
    events = [*s.nodes(), *next(s.windows(1))]
    told = []
    for chosen, sent in ((plain, [(0, e) for e in events]), (read, s.records(events))):
        decoder, spelled = make_decoder(chosen, schema_of(chosen)), []
        for number, topic in enumerate(s.topics("t")):
            own = [Record(e.value, i) for i, (n, e) in enumerate(sent) if n == number]
            good, bad = decoder.decode(own, 0, 2 * 10**15, topic) if own else ((), ())
            assert len(good) == len(own) and not bad
            spelled += spell(good, decoder.keys.keys) if own else []
        told.append(sorted((e.offset, e.time, e.kind, e.a, e.b, *e.values) for e in spelled))
    assert told[0] == told[1] and len(told[0]) == len(events)


def test_the_broker_of_the_demo_lies_outside_the_data_directory_and_leaves_nothing(tmp_path, monkeypatch):
    """A search for erased keys reads all files of the data directory."""
    folders = []

    def refuse(topic, partitions):
        folders[0].joinpath("log").write_bytes(b"user:34")
        raise DemoError("no topic")

    def find_broker(servers, folder):
        folders.append(folder)
        return SimpleNamespace(create_topic=refuse, close=lambda: None, note="a broker", bootstrap_servers="b:1", client={})

    monkeypatch.setattr(play, "find_broker", find_broker)
    with pytest.raises(DemoError, match="no topic"):
        play.play("wikipedia", "max", True, 1, False, None, 0, tmp_path / "data")
    folder, = folders
    assert not folder.is_relative_to(tmp_path) and not folder.exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["data"]


@pytest.fixture(params=["stand-in", pytest.param("Apache Kafka", marks=pytest.mark.kafka)])
def broker(request):
    if request.param == "Apache Kafka":
        yield request.getfixturevalue("kafka")
        return
    broker = StandIn()
    yield broker
    broker.close()


def seconds_until_read(broker, client):
    """How long five records take to a consumer whose fetch waits already when each is sent."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, client=client, topics=("waited",))
    producer, consumer, waited = make_producer(kafka), make_consumer(kafka), 0.0
    consumer.assign([TopicPartition("waited", 0)])
    consumer.seek_to_end()
    consumer.poll(timeout_ms=600)
    for _ in range(5):
        # A fetch that begins now waits when the record is sent.
        consumer.poll(timeout_ms=50)
        sent = time.monotonic()
        producer.send("waited", b"{}", partition=0).get(timeout=30)
        while not consumer.poll(timeout_ms=1000):
            pass
        waited += time.monotonic() - sent
    producer.close()
    consumer.close(autocommit=False)
    return waited


def test_a_record_is_read_soon_though_a_fetch_waits_at_the_stand_in():
    broker = StandIn()
    broker.create_topic("waited", 4)
    asleep = seconds_until_read(broker, {"api_version": broker.client["api_version"]})
    assert asleep > 1 and seconds_until_read(broker, broker.client) < asleep / 2
    broker.close()


def test_three_topics_make_a_log_of_the_files_events_each_in_its_edge_set(broker, tmp_path):
    s = find_stream("mathoverflow")
    for topic in s.topics("posts"):
        broker.create_topic(topic, 4)
    read = load_settings(None, s.settings("posts") | {
        "data_dir": tmp_path, "kafka.bootstrap_servers": broker.bootstrap_servers, "kafka.client": broker.client,
        "kafka.topics": s.topics("posts"), "ingest.merge_wait_seconds": play.MERGE_WAIT_SECONDS}, {})[0]
    writer, stop = LogWriter(tmp_path, schema_of(read), 4096), threading.Event()
    loop = IngestLoop(read, writer, make_dead_letters(read), SystemClock(), Heartbeat(tmp_path, "ingest"))
    ingest = threading.Thread(target=loop.run, args=(stop,))
    midnight = int(time.time()) // DAY * DAY
    player = Player(s, read.data_dir, read.kafka, 0.0, 2, lambda: 99, midnight)
    ingest.start()
    try:
        player.start()
        assert player.status.done.wait(120) and player.status.error is None
    finally:
        player.stop()
        stop.set()
        ingest.join()
        writer.close()

    with gzip.open(DATA / "mathoverflow.csv.gz", "rt") as file:
        lines = [[int(r[c]) for c in ("t", "src", "dst", "kind")] for r in csv.DictReader(file)]
    # The file begins on 1 July 2010, and its second day ends last midnight; events of a second lie in any order in the log.
    later_by = midnight - (1277942400 + 2 * DAY)
    want = sorted(((t + later_by) * 10**6, f"user:{src}", f"user:{dst}", kind) for t, src, dst, kind in lines if t < 1277942400 + 2 * DAY)
    log = LogReader.open(tmp_path)
    src, dst, time_us = log.edges(0, log.num_edges)
    sets = log.edge_sets_of(np.arange(log.num_edges))
    assert sorted(zip(time_us, [log.keys[u] for u in src], [log.keys[v] for v in dst], sets, strict=True)) == want
    assert (np.diff(time_us) >= 0).all() and set(sets) == {0, 1, 2} and log.num_edges == player.status.sent
    assert [one.name for one in schema_of(read).edge_sets] == ["answers", "question_comments", "answer_comments"]


def test_the_player_is_a_few_windows_ahead_of_the_log_and_no_more(tmp_path):
    broker, s = StandIn(), find_stream("mathoverflow")
    for topic in s.topics("ahead"):
        broker.create_topic(topic, 4)
    LogWriter(tmp_path, Schema(0, 0, 0), 4096).close()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, client=broker.client, topics=s.topics("ahead"))
    player = Player(s, tmp_path, kafka, 0.0, 3, lambda: 0)
    player.start()
    ahead = sum(map(len, [*s.windows(3)][:MAX_WINDOWS_IN_FLIGHT]))
    until = time.monotonic() + 60
    while player.status.sent < ahead and time.monotonic() < until:
        time.sleep(0.01)
    assert not player.status.done.wait(1) and player.status.sent == ahead < player.status.total
    player.stop()
    assert player.status.error is None
    broker.close()


def test_before_a_window_the_log_has_all_earlier_events(tmp_path):
    broker, s = StandIn(), find_stream("mathoverflow")
    for topic in s.topics("before"):
        broker.create_topic(topic, 4)
    LogWriter(tmp_path, Schema(0, 0, 0), 4096).close()
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, client=broker.client, topics=s.topics("before"))
    asked = []
    player = Player(s, tmp_path, kafka, 0.0, 3, lambda: 0, None, asked.append)
    player.start()
    first = next(s.windows(3))
    until = time.monotonic() + 60
    while player.status.sent < len(first) and time.monotonic() < until:
        time.sleep(0.01)
    # Nothing reads the topics, so the log has no event, and the second window waits.
    assert not player.status.done.wait(1) and player.status.sent == len(first) and asked == [first]
    player.stop()
    assert player.status.error is None
    broker.close()


@pytest.mark.parametrize("name", STREAMS)
def test_the_users_of_a_trial_ask_before_their_first_event_of_a_window(name):
    s, asked = find_stream(name), []
    users = SimulatedUsers(s, SimpleNamespace(ask=lambda path, body: asked.append((path, body))))
    windows = list(s.windows(2))
    for window in windows:
        users.ask(window)
    requests = [one for path, body in asked for one in body["requests"] if path == "/v1/recommend/batch"]
    assert users.asked == len(requests) > 0 == users.failed and max(len(body["requests"]) for _, body in asked) <= MAX_ASKED
    edges = [json.loads(event.value) for window in windows for event in window]
    named = {(edge["src"], edge["time"], edge.get("edge_set")) for edge in edges}
    assert all((one["src"], one["time"] + 1, one.get("edge_set")) in named for one in requests)
    assert {one["trial"]["unit"] for one in requests} == {f"{one['src']} on day {(one['time'] + 1) // DAY}" for one in requests}
    # Those of one set have the same kinds of nodes as the outcomes.
    assert {one.get("edge_set") for one in requests} == {s.edge_sets[0] if s.edge_sets else None}


def test_a_server_that_does_not_answer_the_users_of_a_trial_is_counted():
    def refuse(path, body):
        raise ConnectionRefusedError

    users = SimulatedUsers(find_stream("wikipedia"), SimpleNamespace(ask=refuse))
    users.ask(next(find_stream("wikipedia").windows(1)))
    assert 0 < users.asked == users.failed <= MAX_ASKED


def test_the_taxi_stream_leaves_out_what_gives_away_the_label_and_has_its_zones():
    s = find_stream("taxi")
    assert not {"tip_amount", "total_amount"} & set(s.edge_features) and len(s.node_features) == 13 and len(s.nodes()) == 265
    assert sum(map(len, s.windows(3))) < sum(map(len, s.windows(4)))


def test_an_unknown_stream_is_named():
    with pytest.raises(DemoError, match="wikipedia, taxi"):
        find_stream("chess")


def test_twins_score_every_window_the_live_model_scores_and_frozen_equals_live_until_the_cut(tmp_path):
    from tests.training.test_trainer import make, process_all

    write_log(tmp_path, *stream(900, hours=60), Schema(2, 0, 0), watermark=100 * HOUR)
    trainer, _, _ = make(tmp_path)
    records = process_all(trainer)
    baselines = Baselines(tmp_path, learning(settings(tmp_path, stream__edge_feature_dim=2)), 900)
    baselines.start()
    while len(baselines.windows) < len(records) and baselines.error is None:
        time.sleep(0.05)
    baselines.stop()
    assert baselines.error is None and len(baselines.windows) == len(records) and baselines.edge == records[-1].end_edge
    for record, baseline in zip(records, baselines.windows, strict=True):
        assert baseline.num_scored == record.num_scored
        if record.num_scored:
            for rule in ("rule", "edgebank"):
                assert baseline.scores[rule] == record.scores[rule], "the same negatives"
            if record.end_edge <= baselines.cut:
                assert baseline.scores["frozen"] == record.scores["live"], "the same learning, bit for bit"
    table = rows(records, baselines.windows, baselines.cut, 900)
    assert [r.label for r in table] == ["day 1", "day 2", "day 3", "after 270 events", "known before"]
    late = [r for r in records if r.first_edge >= baselines.cut]
    want = np.average([r.scores["live"]["mrr"] for r in late], weights=[r.num_scored for r in late])
    assert abs(table[-2].means["live"][0] - want) < 1e-12
    known = np.average([r.scores["live"]["mrr_known"] for r in late], weights=[r.num_known for r in late])
    assert abs(table[-1].means["live"][0] - known) < 1e-12 and table[-1].means["live"][1] is None
    assert render(table, "t")[0].row_count == 5
    # No night passed before the first day, nor before all that is after its first events.
    assert [r.has_rule for r in table] == [True, False, False, True, True]
    assert table[0].means["nightly"] == table[0].means["nightly_live"] == pytest.approx(table[0].means["rule"])
    reader = LogReader.open(tmp_path)
    assert reader.num_edges == 900


def test_waiting_for_the_twins_says_how_far_they_are_in_lines_that_are_not_wrapped(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(play, "POLL_SECONDS", 0.0)
    baselines, out = SimpleNamespace(edge=300, windows=[0] * 3), io.StringIO()

    def check():
        baselines.edge += 100
        baselines.windows.append(0)

    play.await_baselines(baselines, 10, 1000, Console(file=out, width=40), check)
    shares = [int(n) for n in re.findall(r"^models to compare with .*: (\d+) %, [\d,]+ .*events", out.getvalue(), re.M)]
    assert shares == [*range(30, 101, 10), 100] and len(out.getvalue().splitlines()) == len(shares)


def test_the_demo_says_in_a_log_how_far_the_learning_is():
    records = [SimpleNamespace(end_edge=250, num_scored=0, version="3600000000-250")]
    watch = SimpleNamespace(beat=lambda role: None, detail=lambda role: {}, history=SimpleNamespace(refresh=lambda: records))
    player, out = SimpleNamespace(status=SimpleNamespace(total=1000)), io.StringIO()
    with display(Console(file=out, width=40, soft_wrap=True)) as show:
        for _ in range(5):
            show(watch, player, 0.0)
    line, = out.getvalue().splitlines()
    assert "learned 25 %, 250 of 1,000 events" in line, "a line in ten seconds, however long it is"
    assert "version 3600000000-250" in line, "also while the trainer's heartbeat names none"


def test_scores_of_a_nightly_model_before_its_first_night_are_marked():
    def printed(*has_rule):
        out = io.StringIO()
        Console(file=out, width=130).print(*render([Row(f"day {n}", 5, dict.fromkeys(COLUMNS, (0.5, 0.4)), one) for n, one in enumerate(has_rule)], "t"))
        return out.getvalue()

    lines = [line.split("│") for line in printed(True, False).splitlines() if "│" in line]
    stars = {line[1].strip(): [cell.strip().endswith("*") for cell in line[3:10]] for line in lines}
    assert stars["day 0"] == [name in ("nightly", "nightly_live") for name in COLUMNS] and not any(stars["day 1"])
    assert "* with windows before the first night" in printed(True, False) and "*" not in printed(False)


def test_each_arm_of_the_demos_trial_is_a_line_of_a_file(tmp_path, monkeypatch):
    row = ("last_midnight", "25 %", "1,234", "5,678", "90", ".123", ".123", "-.456 ± .789, at a level of .01 for all arms")
    monkeypatch.setattr("streamd.demo.trial_users.read_figures", lambda *_: [row])
    monkeypatch.setattr("streamd.demo.trial_users.rows", lambda figures: figures)
    monkeypatch.setattr("streamd.demo.trial_users.notes", lambda figures: ())
    out = io.StringIO()
    users, reader = SimpleNamespace(asked=9, failed=0), SimpleNamespace(detail=lambda role: {"edge": 5})
    print_trial(users, tmp_path, reader, 5, Console(file=out, width=80))
    line, = [line for line in out.getvalue().splitlines() if "last_midnight" in line]
    assert all(cell in line for cell in row)


@pytest.mark.parametrize("name", ["wikipedia", "taxi", "mathoverflow"])
def test_the_page_s_note_is_whole_sentences(tmp_path, name):
    stream = find_stream(name)
    note = play.page_note(stream, 2, with_trial=False)
    assert note.startswith("Demo: the first 2 days of a month of ") and note.endswith("? All days are moved so that the last one ends last midnight (UTC).")
    of_trial = trial_settings(stream, "t-trials")
    made = play._settings(stream, SimpleNamespace(bootstrap_servers="h:1", client={}), "t", tmp_path, 0, play.page_note(stream, 2, with_trial=True), of_trial)
    assert made.server.page_note == f"{note} {REMARK}" and made.trials.name and made.telemetry.trial_port == 0


def test_in_a_narrow_terminal_the_last_table_is_two_of_80_columns():
    table = [Row("day 31", 12_345, dict.fromkeys(COLUMNS, (0.512, 0.987)), True),
             Row("after 47,242 events", 110_232, dict.fromkeys(COLUMNS, (0.512, 0.987))), Row("known before", 110_000, dict.fromkeys(COLUMNS, (0.498, None)))]
    out = io.StringIO()
    for one in render(table, "wikipedia: prequential scores", 80):
        Console(file=out, width=80).print(one)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in out.getvalue() and "popularity" in out.getvalue()
    assert [sum(line.count(score) for line in lines) for score in (".512", ".987", ".498")] == [14, 14, 7]
    assert sum("110,000" in line for line in lines) == 1, "the row without AP is in the table of MRR alone"


def test_all_events_wait_for_a_trainer_that_has_not_begun():
    watch = SimpleNamespace(beat=lambda role: None, detail=lambda role: {"edges": 3634} if role == "ingest" else {}, history=SimpleNamespace(refresh=list))

    def line(total):
        out = io.StringIO()
        with display(Console(file=out, width=40, soft_wrap=True)) as show:
            show(watch, SimpleNamespace(status=SimpleNamespace(total=total)), 0.0)
        return out.getvalue()

    assert "events 3,634 of 157,474" in line(157_474) and "not yet learned 3,634" in line(157_474)
    assert " of " not in line(0) and "waits for ingest" in line(0), "the file is not read yet, so nobody knows how many there are"


def test_the_title_is_of_the_days_that_are_played():
    assert [play.title_of(find_stream("taxi"), days).partition(":")[0] for days in (None, 1, 3)] == [
        "a month of New York green taxi trips", "the first day of a month of New York green taxi trips", "the first 3 days of a month of New York green taxi trips"]


def test_before_the_first_window_the_demo_says_what_it_waits_for():
    states = {}
    watch = SimpleNamespace(beat=lambda role: SimpleNamespace(state=states[role]) if role in states else None)
    said = [reason_to_wait(watch, 0)]
    for role, state in [("ingest", "connecting"), ("ingest", "running"), ("train", "preparing"), ("train", "waiting"), ("train", "learning")]:
        states[role] = state
        said.append(reason_to_wait(watch, 0))
    ingest = "ingest, which connects to the broker"
    assert said == [ingest, ingest, "the trainer, which starts", "the trainer, which loads or compiles kernels",
                    "the first window to end", "the first window, which is being learned"]
    assert reason_to_wait(watch, 1) == ""


def test_the_popularity_half_life_is_chosen_before_the_scored_part():
    def baseline(edge, best):
        scores = {f"popularity_{h}": {"mrr": float(h == best), "ap": 0.0} for h in range(NUM_HALF_LIVES)}
        return RegimeWindow(window=Window(0, 1, edge, edge + 1), num_scored=1, num_known=1, scores=scores, seconds={})

    assert best_half_life([baseline(10, 0), baseline(25, 4), baseline(29, 4), baseline(40, 1)], 20, 30) == 4
    assert best_half_life([], 20, 30) == 2


def test_a_window_without_scores_has_no_row():
    record = WindowRecord(start_us=0, end_us=10, first_edge=0, end_edge=5, num_scored=0, version="", scored_by="rule",
                          promoted=False, reason="", scores={}, loss=None, seconds={}, finished_at=0.0)
    baseline = RegimeWindow(window=Window(0, 10, 0, 5), num_scored=0, num_known=0, scores={}, seconds={})
    assert rows([record], [baseline], 0, 5) == []


def test_a_given_broker_that_does_not_answer_is_named_in_one_error():
    broker = find_broker(f"127.0.0.1:{free_port()}", Path("unused"))
    with pytest.raises(DemoError, match="No broker answers at 127.0.0.1:.*: connection refused.*--bootstrap-servers"):
        broker.create_topic("events", 1)
