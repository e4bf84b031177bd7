"""What an OTLP collector gets."""

import http.server
import threading
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@contextmanager
def collecting():
    """A collector. Yields: its address, and the list of (path, headers, body) that it got."""
    got = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def resources(got):
    """Of all that was sent: (attributes of the resource, its spans)."""
    for _, _, body in got:
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {a.key: a.value.string_value for a in sent.resource.attributes}
            yield attributes, [span for scope in sent.scope_spans for span in scope.spans]


def spans_by_service(got):
    """All spans, by `service.name`."""
    found = {}
    for attributes, spans in resources(got):
        found.setdefault(attributes["service.name"], []).extend(spans)
    return found
