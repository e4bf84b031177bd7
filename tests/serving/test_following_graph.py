import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.serving import following_graph as server_graph
from streamd.serving.following_graph import ServerGraph
from streamd.serving.serving_settings import ServingSettings
from tests.builders import batch, settings, stream, write_log
from tests.graph.drawing import recent
from tests.server.world import wait


def test_segments_that_retention_drops_while_they_are_read_are_read_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(server_graph, "SLICE_EDGES", 50)
    src, dst, time = stream(400)
    write_log(tmp_path, src[:300], dst[:300], time[:300], segment_edges=64)
    s = settings(tmp_path)

    def opened():
        reader = LogReader.open(tmp_path)
        return ServerGraph(ServingSettings.of(s, "serve"), reader, s.model)

    def read(server):
        while not server.caught_up or server.follow():
            server.follow()

    before = opened()
    read(before)
    before.retention.keep(None)
    wait(lambda: list(tmp_path.glob("roles/serve/facts/*.safetensors")))
    restarted = opened()
    assert restarted.edge == 300 and restarted.follow() == 50, "facts are as stored, the graph is read again"
    writer = LogWriter(tmp_path, Schema(), 64)
    writer.drop_before(192)
    writer.commit(batch(Schema(), src[300:310], dst[300:310], time[300:310]), Progress(), int(time[309]))
    writer.close()
    read(restarted)
    assert restarted.edge == 310 and restarted.log.first_edge == 192
    after = opened()
    read(after)
    nodes = np.arange(35)
    for asked in (310, 250):
        a, b = (recent(v.live.graph, nodes, asked, 10) for v in (restarted, after))
        assert (a.mask == b.mask).all() and (a.event == b.event).all() and a.event[a.mask].min() >= 192
