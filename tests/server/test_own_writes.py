"""A client sends events by REST to a daemon, and asks at once: it reads what it wrote, in one trace."""

import pytest

from streamd.client import Event, Retries, ScoreRequest, TooOld
from streamd.demo.broker import free_port
from streamd.demo.standin import StandIn
from tests.crash.daemons import Daemon, wait
from tests.telemetry.collector import collecting, spans_by_service


@pytest.fixture
def collector():
    with collecting() as (url, got):
        yield url, got


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_client_reads_what_it_wrote_through_kafka_and_ingest(tmp_path, collector, monkeypatch):
    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    broker = StandIn()
    broker.create_topic("events", 4)
    daemon = Daemon(
        tmp_path / "data", broker.bootstrap_servers, "events", kafka__client=broker.client, bootstrap__max_events=0,
        server__deadline_seconds=20,
        telemetry__ingest_port=free_port(), telemetry__train_port=free_port())
    daemon.start()
    try:
        wait(daemon.is_ready, "it answers", 120)
        # Nothing is tried twice, so each answer has seen the writes before it.
        caller = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        with daemon.client(timeout=20, retries=Retries(most=0), headers=caller) as client:
            for turn in range(5):
                sources = [f"u:{turn}-{i}" for i in range(8)]
                client.events([Event(src=src, dst="i:1", time=1_000 + turn) for src in sources])
                answers = client.score_batch([ScoreRequest(src, ["i:1"]) for src in sources])
                assert [a.known for a in answers] == [True] * 8, "each of its events is in"
                assert client.score(sources[0], ["i:1"]).as_of.last_edge >= 8 * turn + 7

            # All is in, so answers are young.
            def is_young():
                try:
                    return client.score("u:0-0", ["i:1"], max_lag_seconds=2).known
                except TooOld:
                    return False

            wait(is_young, "answers are young")
        # The commits of ingest link to the requests by which their events came.
        def links_are_the_requests():
            sent = spans_by_service(got)
            requests = {s.span_id for s in sent.get("streamd-serve", ()) if s.name == "POST /v1/events"}
            commits = [s for s in sent.get("streamd-ingest", ()) if s.name == "commit events"]
            links = {x.span_id for s in commits for x in s.links if x.trace_id.hex() == TRACE}
            return len(requests) == 5 and links == requests

        wait(links_are_the_requests, "commits link to requests")
        inner = {s.name for s in spans_by_service(got)["streamd-serve"] if s.trace_id.hex() == TRACE}
        assert {"reach", "wait", "answer"} <= inner
        assert daemon.stop() == 0, daemon.output()[-3000:]
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
        broker.close()
