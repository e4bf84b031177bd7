"""What spans cost: /v1/score without them, and with them on the way to a collector, in turn in one process."""

import http.server
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from streamd.telemetry import spans
from tests.benchmarks.measure import Row, pick_size
from tests.builders import stream, write_log
from tests.server.world import SCHEMA, World

ROUNDS = pick_size(3_000, 20)
CALLER = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_): ...


def run() -> list[Row]:
    with collecting() as provider, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write_log(Path(folder), *stream(600), SCHEMA)
        # A busy machine may take more than the usual 5 s for a first answer.
        world = World(Path(folder), server__deadline_seconds=60).start()
        try:
            seconds, cpu = measure(world, spans.Spans(provider))
        finally:
            world.stop()
    ms = 1e3 * np.percentile(seconds, 50, axis=0)
    cpu_ms = 1e3 * cpu.mean(0)
    return [Row("/v1/score of 10 candidates with spans, in process: p50", float(ms[1]), "ms", float(ms[0]), "without"),
            Row("CPU of a request with spans, client and exporter among it: mean", float(cpu_ms[1]), "ms", float(cpu_ms[0]), "without")]


@contextmanager
def collecting() -> Iterator[TracerProvider]:
    """Yields: a provider whose spans go to a collector of this process."""
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        # A daemon, so that an error here never keeps the process from ending.
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"http://127.0.0.1:{collector.server_port}/v1/traces")))
        try:
            yield provider
        finally:
            provider.shutdown()
            collector.shutdown()
            thread.join()


def measure(world: World, made: spans.Spans) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and seconds of CPU of each request (R, 2), without spans and with them."""
    body = {"src": "n:3", "dst": [f"n:{i}" for i in range(20, 30)]}
    seconds, cpu = np.zeros((ROUNDS, 2)), np.zeros((ROUNDS, 2))
    for i in range(ROUNDS):
        for n, used in enumerate((None, made)):
            spans.use(used)
            begun, cpu_begun = time.perf_counter(), time.process_time()
            answer = world.client.post("/v1/score", json=body, headers=CALLER)
            assert answer.status_code == 200, answer.text
            seconds[i, n], cpu[i, n] = time.perf_counter() - begun, time.process_time() - cpu_begun
    spans.use(made)
    spans.end_spans()
    return seconds, cpu
