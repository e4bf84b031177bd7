"""Mutated tables played into a stream, and mutated schemas made settings: a named error, or events that ingest takes."""

import msgspec

from streamd.clock import SystemClock
from streamd.decode.checks import rules_of
from streamd.decode.decoder import Decoder
from streamd.errors import StreamdError
from streamd.exchange.load import FileRow
from streamd.settings.loading import load_settings, schema_of
from streamd.tfgnn.logs.declared import declared_sets, graph_schema
from streamd.tfgnn.logs.settings import settings_of_schema
from streamd.tfgnn.logs.table_events import TableEvents, TimeOptions
from streamd.tfgnn.schema.schema import parse_schema, schema_text

#   user --views--> item,  user --buys--> item
DECLARED = """
graph:
  node_sets:
    user: {features: {age: {type: number, missing: 0}, country: {categories: [de, fr], missing: de}, active: {type: bool, missing: false}}}
    item: {}
  edge_sets:
    views: {source: user, target: item, features: {agent: {hash: 8, missing: nobody}, weight: {type: number, missing: 1}}}
    buys: {source: user, target: item}
stream: {time_unit: us}
"""
SCHEMA = """
node_sets { key: "user" value { metadata { filename: "user.csv" %s }
  features { key: "#id" value { dtype: DT_STRING } } features { key: "age" value { dtype: DT_FLOAT } }
  features { key: "country" value { dtype: DT_STRING } } features { key: "active" value { dtype: DT_INT64 } } } }
node_sets { key: "item" value { } }
edge_sets { key: "views" value { source: "user" target: "item" metadata { filename: "views.csv" }
  features { key: "#time" value { dtype: DT_INT64 } } features { key: "agent" value { dtype: DT_STRING } } } }
edge_sets { key: "buys" value { source: "user" target: "item" metadata { filename: "buys.csv" } } }
"""
KEYS = ("", 'extra { key: "streamd.keys" value: "json" }', 'extra { key: "streamd.keys" value: "text" }')
"""How the ids of users stand for keys."""
TABLES = {
    "user.csv": ['#id,age,country,active\n1,2.5,de,0\n"""a""",0,zz,1\n7,-1e3,fr,1\n', "#id,age,country,active\n[[1]],1,de,1\n9223372036854775808,nan,,0\n",
                 "#id,age,country,active\n7,0,,0\n"],
    "views.csv": ["#source,#target,#time,agent\n1,i1,1600000000000000,x\n7,i2,1600000000000001,\n1,i1,1600000000000000,y\n",
                  "#source,#target,#time,agent,#weight\n1,i1,1600000000000009,,3\n7,i1,1600000000000002,z,4\n", "#source,#target,#time,agent\n"],
    "buys.csv": ["#source,#target\n1,i1\n8,i9\n", "#source,#target,#time\n1,i1,99999999999999999\n", "#source,#target,#time\n1,i1,5\n2,é,3\n",
                 "#source,#target,time\n1,i1,2020-09-13T12:26:40.000001\n1,i2,2020-09-13 12:00:01Z\n"],
}
SEEDS = [text.encode() for texts in TABLES.values() for text in texts]


class Playing:
    """What a run of the fuzz makes once."""

    def __init__(self, folder):
        self.folder = folder / "play"
        self.folder.mkdir()
        (self.folder / "declared.yaml").write_text(DECLARED)
        self.settings = load_settings(self.folder / "declared.yaml", {"data_dir": folder / "log"}, environ={})[0]
        self.schemas = [parse_schema((SCHEMA % keys).encode()) for keys in KEYS]
        self.declared = declared = declared_sets(self.settings)
        self.own = [schema_text(graph_schema(declared, reverse)).encode() for reverse in ((), declared.edge_sets)]

    def tables(self, data, rng):
        """Play three tables, most often one of them mutated: every event is one that ingest takes, or the table is refused."""
        for name, texts in TABLES.items():
            (self.folder / name).write_text(rng.choice(texts))
        if rng.random() < 0.6:
            (self.folder / rng.choice(list(TABLES))).write_bytes(data)
        options = TimeOptions(stream_unit="us", max_ahead_seconds=self.settings.ingest.max_ahead_seconds,
                              first_us=rng.choice([None, 0, 1_600_000_000_000_000]), unit=rng.choice([None, None, None, "s"]),
                              column=rng.choice([None, None, None, "agent"]))
        try:
            events = TableEvents(self.declared, rng.choice(self.schemas), self.folder, options, SystemClock())
            rows = list(events.events("us"))
        except StreamdError as error:
            return clear(error)
        if len(rows) != events.num_events:
            return f"{len(rows)} events of {events.num_node_events} nodes and {events.num_edges} edges"
        times = [r.time for r in rows[events.num_node_events:]]
        if times != sorted(times):
            return "events are not in order of time"
        records = [FileRow(offset=r.row, value=r.value) for r in rows]
        _, rejected = Decoder(rules_of(self.settings, schema_of(self.settings))).decode(records, 0, SystemClock().now_us(), "")
        for one in rejected:
            # A key may be too long or empty, a time too old: ingest says so, and where the row is.
            if "row" not in events.location_of(one.offset):
                return f"{one.error} at {events.location_of(one.offset)}"
            msgspec.json.decode(rows[one.offset - 1].value)
        return None

    def declaration(self, data):
        """Make settings of a schema: settings that load, or a refusal."""
        try:
            text = settings_of_schema(parse_schema(data))
        except StreamdError as error:
            return clear(error)
        path = self.folder / "made.yaml"
        path.write_text(text)
        made = load_settings(path, {"data_dir": self.folder / "other"}, environ={})[0]
        # What was made can be said as a schema again, and that makes the same settings.
        again = settings_of_schema(graph_schema(declared_sets(made)))
        path.write_text(again)
        if load_settings(path, {"data_dir": self.folder / "other"}, environ={})[0].graph != made.graph:
            return "other settings come back"
        return None


def clear(error):
    """What is wrong with an error's text."""
    return None if "Operator action" in str(error) or str(error).endswith(".") else f"unclear: {error}"
