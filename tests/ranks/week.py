"""A week of a demo stream as a log."""

import dataclasses

import msgspec
import numpy as np

from streamd.demo.streams import STREAMS
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, empty_batch
from streamd.settings.loading import load_settings
from tests.builders import SECOND

COMMIT = 5_000


def week(name, path, days=7, **values):
    """Write the first days of a stream as a log. Returns: the settings to learn it with, defaults but for what is named."""
    stream = STREAMS[name]
    schema = Schema(len(stream.edge_features), len(stream.node_features), 0)
    ids = {}
    nodes = [msgspec.json.decode(event.value) for event in stream.nodes()]
    node = np.array([ids.setdefault(e["id"], len(ids)) for e in nodes], np.int64)
    events = [msgspec.json.decode(event.value) for window in stream.windows(days) for event in window]
    src, dst = (np.array([ids.setdefault(e[end], len(ids)) for e in events]) for end in ("src", "dst"))
    time = np.array([e["time"] for e in events]) * SECOND
    msg = np.array([e.get("features", []) for e in events], np.float32).reshape(len(events), -1)

    writer = LogWriter(path, schema, 100_000)
    keys = list(ids)
    writer.keys.update(ids)
    for a in range(0, len(events), COMMIT):
        part = slice(a, a + COMMIT)
        rows = dataclasses.replace(
            empty_batch(schema), src_E=src[part], dst_E=dst[part], time_E=time[part], msg_ED=msg[part], new_keys=tuple(keys) if a == 0 else ())
        if a == 0 and nodes:
            rows = dataclasses.replace(
                rows, node_F=node, node_row_F=np.arange(len(node)), node_edge_F=np.zeros(len(node), np.int64),
                node_values_F=np.array([e["features"] for e in nodes], np.float32))
        last = a + COMMIT >= len(events)
        writer.commit(rows, Progress(), int(time[-1]) + 86_400 * SECOND if last else int(time[min(a + COMMIT, len(time)) - 1]))
    writer.close()
    named = {key.replace("__", "."): value for key, value in values.items()}
    return load_settings(None, {"data_dir": path, "stream.time_unit": "us", **named}, environ={})[0]
