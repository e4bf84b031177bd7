"""A client, blocking and for asyncio, of a server that is overloaded, away, slow, or breaks off."""

import asyncio
import json
import socket
import threading
import time

import pytest

from streamd.client import (
    AsyncClient,
    BadAnswer,
    Client,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    MoveRequested,
    NotAllowed,
    NotFound,
    NotPossible,
    NotReached,
    Problem,
    Refused,
    Retries,
    TooOld,
    TryAgain,
    calls,
)
from tests.client.scripted import CLOSE, OK, RESET, Scripted, answer, problem, scripted

QUICK = Retries(most=3, base_seconds=0.01)
SENT = {"topic": "events", "events": [{"partition": 3, "offset": 7, "position": "events:3:7"}], "after": "events:3:7"}
EVENT = {"src": "u", "dst": "i"}


@pytest.fixture(params=["blocking", "asyncio"])
def asked(request):
    """Makes calls, one after the other, on one client of either kind: asked(url, (name, arguments), ...). pause: after each."""
    def blocking(url, *asks, pause=0.0, **chosen):
        with Client(url, **{"retries": QUICK, "timeout": 5.0} | chosen) as client:
            return [(getattr(client, name)(*args), time.sleep(pause))[0] for name, *args in asks]

    def awaited(url, *asks, pause=0.0, **chosen):
        async def all_of_them():
            async with AsyncClient(url, **{"retries": QUICK, "timeout": 5.0} | chosen) as client:
                return [(await getattr(client, name)(*args), await asyncio.sleep(pause))[0] for name, *args in asks]
        return asyncio.run(all_of_them())

    return blocking if request.param == "blocking" else awaited


SCORE = ("score", "u", ["i"])


@pytest.mark.parametrize("first", [
    problem(429), problem(503), problem(503, retry_after="0"), problem(504), answer(502, b"<html>"), RESET, CLOSE,
    [answer()[0][:60], None], [answer()[0][:-5], None]],
    ids=["429", "503", "503 with Retry-After", "504", "502 of a proxy", "reset", "closed", "half a head", "half a body"])
def test_a_call_that_reads_is_sent_again(asked, first):
    with scripted(first, first, answer()) as server:
        found, = asked(server.url, SCORE)
    assert found.src == "u" and len(server.requests) == 3
    assert len({(path, body) for _, path, _, body in server.requests}) == 1, "the same each time"


def old(body, status=200):
    """An answer as an HTTP/1.0 proxy gives it: without a length, ended by the end of the connection."""
    return [f"HTTP/1.0 {status} Word\r\ncontent-type: application/json\r\n\r\n".encode() + json.dumps(body).encode(), None]


def test_a_proxy_of_http_1_0_closes_after_each_answer(asked):
    with scripted(old(OK), old(SENT, 202), old({"detail": "full"}, 503), old(OK)) as server:
        first, sent, last = asked(server.url, SCORE, ("events", [EVENT]), SCORE)
    assert (first.src, sent.after, last.src) == ("u", "events:3:7", "u") and len(server.requests) == 4

    # What it cuts off cannot be told from an answer that is none.
    with scripted([old(OK)[0][:-9], None]) as server, pytest.raises(BadAnswer):
        asked(server.url, SCORE)


def test_a_server_that_closes_each_connection_it_promised_to_keep_loses_nothing(asked):
    """Also events, which are not sent twice: the next call sees that its connection is gone, and opens another."""
    calls_made = [SCORE, ("events", [EVENT])] * 5
    kept = [[*answer(), None], [*answer(202, SENT), None]] * 5
    with scripted(*kept) as server:
        asked(server.url, *calls_made, pause=0.03)
    assert len(server.requests) == 10


@pytest.mark.parametrize("first", [RESET, problem(503)])
def test_it_is_not_sent_again_for_ever(asked, first):
    with scripted(*[first] * 9) as server, pytest.raises((ConnectionFailed, TryAgain)):
        asked(server.url, SCORE)
    assert len(server.requests) == 4


@pytest.mark.parametrize(("first", "error"), [
    (RESET, ConnectionFailed), (CLOSE, ConnectionFailed), (problem(503, "Kafka did not acknowledge"), TryAgain), (answer(502, b"x"), TryAgain)])
def test_events_that_may_have_been_sent_are_not_sent_again(asked, first, error):
    with scripted(first, answer(202, SENT)) as server, pytest.raises(error) as told:
        asked(server.url, ("events", [EVENT]))
    assert len(server.requests) == 1 and told.value.may_have_happened


@pytest.mark.parametrize("name", ["promote", "rollback"])
def test_neither_is_a_move_of_the_champion(asked, name):
    with scripted(CLOSE) as server, pytest.raises(ConnectionFailed) as told:
        asked(server.url, (name, "because") if name == "rollback" else (name, "1-1", "because"))
    assert len(server.requests) == 1 and told.value.may_have_happened


def test_events_that_were_refused_unread_or_that_may_be_there_twice_are_sent_again(asked):
    with scripted(problem(429), answer(202, SENT)) as server:
        sent, = asked(server.url, ("events", [EVENT]))
    assert sent.after == "events:3:7" and len(server.requests) == 2
    with scripted(CLOSE, answer(202, SENT)) as server:
        asked(server.url, ("send", calls.events([EVENT], at_least_once=True)))
    assert len(server.requests) == 2


def test_a_server_that_starts_later_is_waited_for(asked):
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(ConnectionFailed) as told:
        asked(f"http://127.0.0.1:{port}", ("events", [EVENT]), retries=Retries(most=0))
    assert not told.value.may_have_happened, "nothing was sent"

    # It comes up while the client waits: also events are sent then, once.
    held = []

    def come_up():
        time.sleep(0.2)
        held.append(Scripted(answer(202, SENT), port=port))

    starting = threading.Thread(target=come_up)
    starting.start()
    asked(f"http://127.0.0.1:{port}", ("events", [EVENT]), retries=Retries(most=50, base_seconds=0.02, longest_seconds=0.1))
    starting.join()
    held[0].close()
    assert len(held[0].requests) == 1


@pytest.mark.parametrize("slow", [
    [1.0], [answer()[0][:-30], *[x for b in answer()[0][-30:] for x in (0.1, bytes([b]))]]], ids=["no answer", "byte by byte"])
def test_a_slow_answer_ends_with_the_calls_time(asked, slow):
    begun = time.monotonic()
    with scripted(slow) as server, pytest.raises(DeadlineExceeded, match="longer than 0.3 s") as told:
        try:
            asked(server.url, SCORE, timeout=0.3)
        finally:
            took = time.monotonic() - begun
            slow.clear()
    assert isinstance(told.value, TimeoutError) and took < 2.0


def test_tries_and_waits_share_the_calls_time(asked):
    begun = time.monotonic()
    with scripted(*[problem(503, retry_after="60")] * 3) as server, pytest.raises(TryAgain) as told:
        asked(server.url, SCORE)
    assert time.monotonic() - begun < 4 and len(server.requests) == 1, "a wait of a minute would lead nowhere"
    assert told.value.retry_after == 60


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"src": "u"}', b"\xff\xfe", b"", b'{"src": "u", "known": "yes", "scores": []}'])
def test_an_answer_that_is_none_is_said_so_and_not_asked_for_again(asked, body):
    with scripted(answer(200, body)) as server, pytest.raises(BadAnswer):
        asked(server.url, SCORE)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "kind", "error"), [
    (400, "about:blank", Refused), (401, "about:blank", NotAllowed), (403, "about:blank", NotAllowed), (404, "about:blank", NotFound),
    (409, "about:blank", NotPossible), (422, "about:blank", Refused), (500, "about:blank", Problem), (302, "about:blank", Problem),
    (503, "urn:streamd:answer-too-old", TooOld), (504, "urn:streamd:position-not-reached", NotReached)])
def test_an_error_has_the_servers_words(asked, status, kind, error):
    with scripted(problem(status, "this is why", kind, x_request_id="abc")) as server, pytest.raises(error) as told:
        asked(server.url, SCORE, retries=Retries(most=0))
    e = told.value
    assert type(e) is error and isinstance(e, ClientError)
    assert (e.status, e.title, e.detail, e.type, e.request_id) == (status, "Word", "this is why", kind, "abc")
    assert "this is why" in str(e)


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"[1]", b"", b"\xff"])
def test_an_error_that_is_no_problem_document_is_one_of_its_status(asked, body):
    with scripted(answer(502, body)) as server, pytest.raises(TryAgain) as told:
        asked(server.url, SCORE, retries=Retries(most=0))
    assert told.value.title == "Bad Gateway" and told.value.type == "about:blank"


def test_fields_that_a_newer_server_adds_are_passed_over(asked):
    with scripted(answer(200, OK | {"new": {"a": 1}})) as server:
        assert asked(server.url, SCORE)[0].known


def test_a_client_reads_its_own_writes(asked):
    """Records first; once an answer has seen them, that answer's position stands for them."""
    later = SENT | {"events": [], "after": "events:3:9, other:0:1"}
    seen = answer(200, OK, streamd_position="2.41")
    with scripted(answer(), answer(202, SENT), seen, answer(202, later), answer(200, []), seen, answer(200, SCHEMA)) as server:
        asked(server.url, SCORE, ("events", [EVENT]), SCORE, ("events", [EVENT]), ("embeddings", ["u"]), SCORE, ("schema",))
    assert [headers.get("streamd-after") for _, _, headers, _ in server.requests] == [
        None, None, "events:3:7", None, "events:3:9, other:0:1, 2.41", "events:3:9, other:0:1, 2.41", None]


def test_it_need_not(asked):
    with scripted(answer(202, SENT), answer()) as server:
        asked(server.url, ("events", [EVENT]), SCORE, read_own_writes=False)
    assert not any("streamd-after" in headers for _, _, headers, _ in server.requests)


SCHEMA = {"node_sets": [], "edge_sets": [], "label_dim": 0, "time_unit": "ms"}


def test_a_move_that_a_replica_asked_for_is_told_from_one_that_was_made(asked):
    done = {"action": "promote", "champion": "2-2", "shadow": "1-1"}
    with scripted(answer(200, done), answer(202, {"request": "r-1"}), answer(200, {"state": "waiting", "reason": "", "moved": None}),
                  answer(200, {"state": "done", "reason": "", "moved": done})) as server:
        made, later, waits, outcome = asked(
            server.url, ("promote", "2-2", "why"), ("rollback", "why"), ("move_outcome", "r-1"), ("move_outcome", "r-1"))
    assert made.champion == "2-2" and later == MoveRequested(request="r-1")
    assert (waits.state, waits.moved, outcome.state, outcome.moved) == ("waiting", None, "done", made)


def test_a_key_and_other_headers_go_with_every_request(asked):
    with scripted(answer(200, SCHEMA)) as server:
        asked(server.url + "/", ("schema",), api_key="sesame", headers={"traceparent": "00-1"})
    (method, path, headers, _), = server.requests
    assert (method, path, headers["authorization"], headers["traceparent"]) == ("GET", "/v1/schema", "Bearer sesame", "00-1")
