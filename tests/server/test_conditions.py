"""What a request may ask of its answer: to have seen a commit or a record, and to be no older than so long."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.datastructures import Headers

from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, Run, Schema, empty_batch
from streamd.roles import ENDS, FOLLOW, HEARTBEAT, make_folder
from streamd.server.engine.conditions import (
    MAX_TOKENS,
    BadCondition,
    CommitToken,
    RecordToken,
    read_conditions,
)
from streamd.server.engine.lag import MAX_PENDING, Completeness
from tests.builders import HOUR, SECOND, batch, stream, write_log
from tests.server.world import SCHEMA, World, wait

BODY = {"src": "n:3", "dst": ["n:20", "n:21"]}
INFER = {"inputs": [{"name": "src", "shape": [1], "datatype": "BYTES", "data": ["n:3"]},
                    {"name": "dst", "shape": [1, 2], "datatype": "BYTES", "data": ["n:20", "n:21"]}]}
ANSWERS = [
    ("POST", "/v1/score", BODY), ("POST", "/v1/score/batch", {"requests": [BODY, BODY]}),
    ("POST", "/v1/recommend", {"src": "n:3", "k": 2}), ("POST", "/v1/recommend", {"src": "n:3", "k": 2, "exact": True}),
    ("POST", "/v1/recommend/batch", {"requests": [{"src": "n:3"}]}),
    ("POST", "/v2/models/streamd/infer", INFER), ("POST", "/v2/models/streamd/versions/rule/infer", INFER)]


class Log:
    """A log that grows by commits of one event, which say how far each partition was read."""

    def __init__(self, path):
        src, dst, self.time = stream(400)
        write_log(path, src, dst, self.time, SCHEMA, watermark=100 * HOUR)
        self.path, self.writer, self.at = path, LogWriter(path, SCHEMA, 100_000), 100 * HOUR

    @property
    def seq(self):
        return self.writer.state.seq

    def append(self, num_events=1, **positions):
        """positions: of each partition of the topic "events", as p0=Position(...)."""
        self.at += SECOND
        times = [self.at] * num_events
        rows = batch(SCHEMA, [3] * num_events, [20] * num_events, times) if num_events else empty_batch(SCHEMA)
        moved = {int(name[1:]): position for name, position in positions.items()}
        self.writer.commit(rows, Progress(positions={"events": moved} if moved else {}), self.at)
        return self.seq


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path)
    yield made
    made.writer.close()


@pytest.fixture
def world(log):
    made = World(log.path, server__deadline_seconds=3, server__max_queue=64).start()
    yield made
    made.stop()


def ask(world, headers=(), body=BODY, method="POST", path="/v1/score"):
    return world.client.request(method, path, json=body, headers=headers)


def problem(world, headers, status):
    answer = ask(world, headers)
    assert answer.status_code == status, answer.text
    return answer.json()


# Tokens, as they are read.


@pytest.mark.parametrize(("text", "token"), [
    ("0.0", CommitToken(0, 0)), ("3.17", CommitToken(3, 17)), (f"0.{2**63 - 1}", CommitToken(0, 2**63 - 1)),
    ("events:0:5", RecordToken("events", 0, 5)), ("a.b-c_D:12:0", RecordToken("a.b-c_D", 12, 0)),
    ("1.2:3:4", RecordToken("1.2", 3, 4)), (".*:0:1", None), ("..:0:1", RecordToken("..", 0, 1))])
def test_a_token_names_a_commit_or_a_record(text, token):
    if token is None:
        with pytest.raises(BadCondition, match="neither"):
            read_conditions(Headers({"streamd-after": text}))
    else:
        assert read_conditions(Headers({"streamd-after": text})).after == (token,) and str(token) == text


HOSTILE = ["", " ", ",", "1", "1.", ".1", "-1.2", "1.-2", "1.2.3", "+1.2", "1e5.2", "0x1.2", "1.2;", "1 .2", "events:0", "events::1",
           "events:0:-1", ":0:1", "a:b:0:1", "events:0:1:2", "ev ents:0:1", "events:0:1,", "ev/ents:0:1", "\u00b2.\u00b3", "\u00e9:0:1",
           f"0.{2**63}", f"{2**63}.0", "0." + "9" * 5000, f"events:0:{2**63}", "events:99999999999:1", "t" * 250 + ":0:1", "nan", "1.2\x7f"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_token_is_refused_with_a_short_reason(world, text):
    said = problem(world, {"streamd-after": text.encode("latin-1")}, 400)["detail"]
    assert said.startswith("streamd-after: ") and said.isascii() and len(said) < 250


def test_several_tokens_by_commas_or_headers_are_all_read_up_to_a_bound(world):
    read = read_conditions(Headers(raw=[(b"streamd-after", b"0.1, events:0:5"), (b"streamd-after", b"0.2")]))
    assert [str(t) for t in read.after] == ["0.1", "events:0:5", "0.2"]
    assert len(read_conditions(Headers({"streamd-after": ",".join(["0.1"] * MAX_TOKENS)})).after) == MAX_TOKENS
    assert "at most 256" in problem(world, {"streamd-after": ",".join(["0.1"] * (MAX_TOKENS + 1))}, 400)["detail"]


@pytest.mark.parametrize("text", ["", "-1", "1s", "nan", "inf", "1e3", "1,2", "9" * 400, "\u00b2", "0.1.2"])
def test_a_lag_that_is_no_number_of_seconds_is_refused(world, text):
    assert "is not a number of seconds" in problem(world, {"streamd-max-lag": text.encode("latin-1")}, 400)["detail"]
    assert ask(world, [("streamd-max-lag", "1"), ("streamd-max-lag", "2")]).status_code == 400


@pytest.mark.parametrize(("position", "inside", "outside"), [
    (Position(5), (0, 4), (5, 6)),
    (Position(5, 2), (4,), (5,)),                             # two events of record 5 are in, more may follow
    (Position(5, 0, (Run((5, 1), (6, 0)),)), (4,), (5, 6)),         # an event of record 6 is in, the record may have others
    (Position(0), (), (0,)), (Position(-1), (), (0,))])
def test_a_record_is_in_once_the_position_is_past_it_and_not_while_an_event_of_it_may_be_held(position, inside, outside):
    state = LogState(Schema(), progress=Progress(positions={"events": {0: position}}))
    assert all(RecordToken("events", 0, offset).is_in(state) for offset in inside)
    assert not any(RecordToken("events", 0, offset).is_in(state) for offset in outside)


def test_commits_are_ordered_by_their_term_first():
    state = LogState(Schema(), seq=7, term=2)
    assert [CommitToken(*c).is_in(state) for c in ((1, 99), (2, 7), (2, 8), (3, 1))] == [True, True, False, False]


# The position of an answer.


def test_every_answer_names_the_commit_it_was_computed_as_of(world, log):
    for turn in range(3):
        seq = log.append(num_events=turn)
        for method, path, body in ANSWERS:
            answer = ask(world, {"streamd-after": f"0.{seq}"}, body, method, path)
            assert answer.status_code == 200, answer.text
            assert answer.headers["streamd-position"] == f"0.{seq}", path
    for path in ("/v1/models", "/status.json", "/readyz"):
        assert "streamd-position" not in world.client.get(path).headers


def follow_ten_at_a_time(monkeypatch):
    """Let a server take in ten events between two passes of answers."""
    monkeypatch.setattr("streamd.serving.following_graph.ANSWERING_EDGES", 10)
    monkeypatch.setattr("streamd.server.engine.pace.TURN_SECONDS", 0.0)
    monkeypatch.setattr("streamd.server.engine.pace.BACKLOG_SECONDS", 0.0)


def test_while_a_slice_is_taken_in_the_position_stays_at_what_is_whole(world, log, monkeypatch):
    """A commit of 2,500 events is taken in ten at a time: its number comes with its last event, and not before."""
    follow_ten_at_a_time(monkeypatch)
    before, seq, partial = log.seq, log.append(2500), 0
    while True:
        answer = ask(world)
        has = answer.json()["as_of"]["last_edge"] + 1 - 400
        assert answer.headers["streamd-position"] == (f"0.{seq}" if has == 2500 else f"0.{before}"), has
        partial += 0 < has < 2500
        if has == 2500:
            break
    assert partial


# Waiting.


def later(seconds, action):
    """Does something in a thread after a while. Returns: the thread."""
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def test_a_request_waits_for_the_commit_that_it_names_and_is_answered_with_it(world, log):
    wanted = log.seq + 2
    log.append()
    timer = later(0.4, log.append)
    begun = time.monotonic()
    answer = ask(world, {"streamd-after": f"0.{wanted}"})
    assert answer.status_code == 200 and answer.headers["streamd-position"] == f"0.{wanted}"
    assert 0.3 < time.monotonic() - begun < 2.5 and answer.json()["as_of"]["last_edge"] == 401
    timer.join()


def test_a_producer_reads_its_own_writes_by_the_place_of_its_record(world, log):
    log.append(p0=Position(5), p1=Position(9))
    assert ask(world, {"streamd-after": "events:0:4, events:1:8"}).status_code == 200
    timers = [later(0.2, lambda: log.append(p0=Position(5, 0, (Run((6, 0), (6, 0)),)))), later(0.5, lambda: log.append(p0=Position(7)))]
    answer = ask(world, {"streamd-after": "events:0:6"})
    assert answer.headers["streamd-position"] == f"0.{log.seq}", "not when it was ahead of one that was held back"
    for timer in timers:
        timer.join()
    # A record without an event, as one that became a dead letter, is dealt with too.
    log.append(0, p1=Position(12))
    assert ask(world, {"streamd-after": "events:1:11"}).status_code == 200


def test_what_does_not_come_is_a_504_by_name_at_the_deadline_while_others_are_answered(world, log):
    log.append(p0=Position(5))
    with ThreadPoolExecutor(8) as pool:
        begun = time.monotonic()
        tokens = [f"0.{2**63 - 1}", f"{2**62}.0", "events:0:5", f"events:0:{2**63 - 1}"]
        waiting = [pool.submit(problem, world, {"streamd-after": token}, 504) for token in tokens]
        wait(lambda: len(world.engine._waiting) == 4)
        assert all(ask(world).status_code == 200 for _ in range(20)) and len(world.engine._waiting) == 4
        assert time.monotonic() - begun < 3
        for token, told in zip(tokens, waiting, strict=True):
            body = told.result()
            assert body["type"] == "urn:streamd:position-not-reached" and token in body["detail"] and body["status"] == 504
    assert time.monotonic() - begun > 2.9 and len(world.engine._waiting) == 0
    answer = ask(world, {"streamd-after": "9.9"}, INFER, path="/v2/models/streamd/infer")
    assert answer.status_code == 504 and "9.9" in answer.json()["error"] and answer.headers["retry-after"] == "1"


def test_a_server_that_ends_lets_those_go_that_wait_for_a_commit(world, log):
    log.append(p0=Position(5))
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(problem, world, {"streamd-after": "events:0:5"}, 504)
        wait(lambda: len(world.engine._waiting) == 1)
        world.client.portal.call(world.engine.end_waits)
        assert "the server stops" in told.result()["detail"]
    assert "the server stops" in problem(world, {"streamd-after": "events:0:5"}, 504)["detail"]
    assert ask(world, {"streamd-after": "events:0:4"}).status_code == 200, "what is there is answered"


def test_a_topic_or_partition_that_the_log_does_not_read_is_refused_at_once(world, log):
    log.append(p0=Position(5))
    begun = time.monotonic()
    for token, said in (("others:0:1", "topic others"), ("events:7:1", "partition 7 of events"), ("event.:0:1", "topic event.")):
        assert said in problem(world, {"streamd-after": token}, 400)["detail"]
    assert time.monotonic() - begun < 2


def test_a_topic_of_the_settings_of_which_nothing_was_read_yet_is_waited_for(world, log):
    timer = later(0.3, lambda: log.append(p0=Position(1)))
    assert ask(world, {"streamd-after": "events:0:0"}).status_code == 200
    timer.join()


def test_no_more_requests_wait_than_the_queue_may_hold_and_they_leave_it_free(world, log):
    wanted = log.seq + 1
    with ThreadPoolExecutor(70) as pool:
        waiting = [pool.submit(ask, world, {"streamd-after": f"0.{wanted}"}) for _ in range(64)]
        wait(lambda: len(world.engine._waiting) == 64)
        assert ask(world, {"streamd-after": f"0.{wanted}"}).status_code == 429
        assert ask(world, {"streamd-after": f"0.{wanted - 1}"}).status_code == 200 and ask(world).status_code == 200
        log.append()
        assert [w.result().status_code for w in waiting] == [200] * 64


def test_many_requests_wait_while_commits_come_and_each_sees_what_it_named(world, log):
    first, count, stop = log.seq, 60, threading.Event()
    with ThreadPoolExecutor(40) as pool:
        asked = [(n, pool.submit(ask, world, {"streamd-after": f"0.{first + n}" if n % 2 else f"events:0:{n - 1}"}))
                 for n in [1 + i * 7 % count for i in range(4 * count)]]
        plain = pool.submit(lambda: [ask(world).status_code for _ in iter(stop.is_set, True)])
        for n in range(1, count + 1):
            log.append(p0=Position(n))
            time.sleep(0.02)
        for n, answer in asked:
            got = answer.result()
            assert got.status_code == 200, got.text
            term, seq = map(int, got.headers["streamd-position"].split("."))
            assert term == 0 and seq >= first + n and got.json()["as_of"]["last_edge"] == 399 + seq - first
        stop.set()
        assert set(plain.result()) == {200}
    wait(lambda: len(world.engine._waiting) == 0)


# How old an answer is.


def beat(path, age=0.0, state="running", **detail):
    """Writes ingest's heartbeat."""
    content = {"role": "ingest", "state": state, "pid": 1, "time": time.time() - age,
               "detail": {"lag": 0, "behind": {}, "broker_age_seconds": 0.0} | detail}
    scratch = make_folder(path, "ingest") / "scratch"
    scratch.write_text(json.dumps(content))
    scratch.replace(scratch.with_name(HEARTBEAT))


def lag_of(answer):
    return float(answer.headers["streamd-lag-seconds"])


def test_without_word_of_ingest_nobody_knows_how_old_an_answer_is(world):
    assert "streamd-lag-seconds" not in ask(world).headers
    assert "\nstreamd_complete_until_timestamp_seconds " not in world.client.get("/metrics").text
    told = problem(world, {"streamd-max-lag": "3600"}, 503)
    assert told["type"] == "urn:streamd:answer-too-old" and "age of answers is unknown" in told["detail"]


def test_an_answer_says_how_old_it_is_and_is_refused_where_that_is_too_old(world, log):
    beat(log.path, age=100)
    wait(lambda: "streamd-lag-seconds" in ask(world).headers)
    assert 100 <= lag_of(ask(world)) < 110
    told = problem(world, {"streamd-max-lag": "60"}, 503)
    assert told["type"] == "urn:streamd:answer-too-old" and "60 s are allowed" in told["detail"]
    assert ask(world, {"streamd-max-lag": "500.5"}).status_code == 200
    beat(log.path)
    wait(lambda: lag_of(ask(world)) < 60)
    assert ask(world, {"streamd-max-lag": "60"}).status_code == 200
    line, = [x for x in world.client.get("/metrics").text.splitlines() if x.startswith("streamd_complete_until_timestamp_seconds ")]
    assert 0 <= time.time() - float(line.split()[1]) < 60


def test_an_answer_grows_old_until_its_view_has_what_ingest_knew_of(world, log):
    """Ingest says at 100 s ago that all is in, and now that partition 0 goes on to offset 8: the log gets there later."""
    log.append(p0=Position(5))
    beat(log.path, age=100)
    wait(lambda: "streamd-lag-seconds" in ask(world).headers)
    beat(log.path, behind={"events": {"0": 8}}, lag=3)
    time.sleep(0.6)
    assert lag_of(ask(world)) > 100
    log.append(p0=Position(7))
    time.sleep(0.6)
    assert lag_of(ask(world)) > 100
    log.append(p0=Position(8))
    wait(lambda: lag_of(ask(world)) < 60)


def test_while_no_broker_answers_answers_grow_older_and_are_given(world, log):
    beat(log.path, age=50)
    wait(lambda: "streamd-lag-seconds" in ask(world).headers)
    content = json.loads((log.path / "roles" / "ingest" / HEARTBEAT).read_text())
    beat(log.path, broker_age_seconds=70.0)
    time.sleep(0.6)
    assert 50 <= lag_of(ask(world)) < 70, "the end it knows of is 70 s old, the one before was younger"
    (log.path / "roles" / "ingest" / HEARTBEAT).write_text(json.dumps(
        content | {"time": time.time(), "state": "broker unavailable", "detail": {"edges": 1}}))
    time.sleep(0.6)
    assert 50 <= lag_of(ask(world)) < 70 and ask(world).status_code == 200


def test_on_a_replica_the_follower_says_what_kafka_has(tmp_path):
    beat(tmp_path, age=5.0)
    complete = Completeness(tmp_path, follows=True)
    file = make_folder(tmp_path, FOLLOW) / ENDS
    for at, (text, known) in enumerate([(None, None), ("torn", None), ('{"time": 50.0, "behind": {"events": {"0": 8}}}', None),
                                        ('{"time": 60.0, "behind": {}}', None)]):
        if text is not None:
            file.write_text(text)
        complete.read_report(float(at))
        complete.advance(LogState(Schema()), 9.0)
        assert complete.until == known
    complete.advance(LogState(Schema(), progress=Progress(positions={"events": {0: Position(8)}})), 9.0)
    assert complete.until == 60.0


def test_a_standby_says_itself_what_kafka_has_while_it_leads(tmp_path):
    """Before, and when ingest here ended, the follower's word counts."""
    complete = Completeness(tmp_path, follows=True)
    (make_folder(tmp_path, FOLLOW) / ENDS).write_text('{"time": 60.0, "behind": {}}')
    beat(tmp_path, age=5.0)
    complete.read_report(0.0)
    complete.advance(LogState(Schema()), 9.0)
    assert complete.until == 60.0
    beat(tmp_path, age=5.0, leading=True)
    complete.read_report(1.0)
    complete.advance(LogState(Schema()), 9.0)
    assert 4 < time.time() - complete.until < 60


def test_looks_that_wait_for_the_view_are_bounded_and_the_newest_counts(tmp_path, monkeypatch):
    complete, state = Completeness(tmp_path), LogState(Schema())
    for i in range(2000):
        beat(tmp_path, age=2000 - i, behind={"events": {"0": 1 + i}})
        complete.read_report(float(i))
    assert len(complete._pending) <= MAX_PENDING
    complete.advance(state, 1e9)
    assert complete.until is None
    read = LogState(Schema(), progress=Progress(positions={"events": {0: Position(2000)}}))
    complete.advance(read, -1.0)
    assert complete.until is None, "the view looked at the log before ingest said so"
    complete.advance(read, 1e9)
    assert time.time() - complete.until < 60 and not complete._pending


# Readiness is a latch.


def test_once_ready_the_server_stays_so_while_it_lags_and_until_it_is_told_to_stop(world, log, monkeypatch):
    follow_ten_at_a_time(monkeypatch)
    beat(log.path, age=10_000)
    wait(lambda: "streamd-lag-seconds" in ask(world).headers)
    log.append(3000)
    behind = 0
    while world.engine.status.edge < 3400:
        assert world.client.get("/readyz").status_code == 200
        behind += 1
    assert behind > 3 and world.client.get("/readyz").json()["ready"] is True
    world.state.draining = True
    assert world.client.get("/readyz").status_code == 503 and ask(world).status_code == 200
