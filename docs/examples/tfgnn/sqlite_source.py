"""A source that reads SQLite, and a sink with a file a sample: `sqlite_source.py FOLDER`."""

import sqlite3
import sys
from pathlib import Path

import numpy as np

from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.sampling.assembly import Assembler
from streamd.tfgnn.sampling.run import sample_records
from streamd.tfgnn.sampling.sampler import Sampler
from streamd.tfgnn.sampling.seeds import name_samples
from streamd.tfgnn.sampling.spec import parse_spec
from streamd.tfgnn.sampling.tables_graph import load_graph
from streamd.tfgnn.schema.messages import EdgeSet
from streamd.tfgnn.schema.schema import parse_schema
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table

folder = Path(sys.argv[1])

# The names of files are those of the tables that are written below; SQLite needs none.
schema = parse_schema(b"""
node_sets { key: "user" value { features { key: "age" value { dtype: DT_INT64 } } metadata { filename: "user.csv" } } }
edge_sets { key: "follows" value { source: "user" target: "user" metadata { filename: "follows.csv" } } }
""")
spec = parse_spec(
    b"""
seed_op { op_name: "seed" node_set_name: "user" }
sampling_ops { op_name: "hop" input_op_names: "seed" edge_set_name: "follows" sample_size: 2 strategy: LATEST_K }
""",
    schema,
)

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE user (id TEXT, age INTEGER)")
database.execute("CREATE TABLE follows (who TEXT, whom TEXT, at INTEGER)")
database.executemany(
    "INSERT INTO user VALUES (?, ?)", [("ann", 30), ("bob", 41), ("cid", 25), ("dee", 37)]
)
database.executemany(
    "INSERT INTO follows VALUES (?, ?, ?)",
    [("ann", "bob", 10), ("ann", "cid", 20), ("ann", "dee", 30), ("bob", "ann", 40)],
)


def ids(values):
    array = np.empty(len(values), object)
    array[:] = [value.encode() for value in values]
    return array


def read(name, one):
    """The source: the rows of a set, two at once."""
    cursor = database.execute(
        "SELECT * FROM follows" if isinstance(one, EdgeSet) else "SELECT * FROM user"
    )
    first = 0
    while rows := cursor.fetchmany(2):
        columns = list(zip(*rows, strict=True))
        if isinstance(one, EdgeSet):
            yield Rows(
                first=first,
                num=len(rows),
                source=ids(columns[0]),
                target=ids(columns[1]),
                time=np.array(columns[2]),
            )
        else:
            yield Rows(
                first=first,
                num=len(rows),
                ids=ids(columns[0]),
                features={"age": np.array(columns[1])},
            )
        first += len(rows)


def save(record, codec, folder):
    """The sink: a file for each sample."""
    graph = codec.decode(record)
    name = graph.context["sample_id"][0].decode()
    follows = graph.edge_sets["follows"]
    np.savez(
        folder / f"{name}.npz",
        age=graph.node_sets["user"].features["age"],
        source=follows.source_E,
        target=follows.target_E,
    )


# Each seed with its time: what ann followed before 25, and before 40.
seeds = name_samples([b"ann", b"ann"], [25, 40])
graph = load_graph(schema, spec, read, seed_ids=seeds.seed_ids)
sampler = Sampler(graph, schema, spec, seed=0, timed_seeds=True)
assembler = Assembler(graph, schema, "user", timed=True)
codec = Codec(assembler.schema)
for record in sample_records(sampler, assembler, seeds):
    save(record, codec, folder)
for path in sorted(folder.glob("*.npz")):
    print(path.stem, np.load(path)["age"].tolist())

# The same rows as unigraph tables, for `streamd tfgnn sample` and for TensorFlow GNN.
for name, one in [*schema.node_sets.items(), *schema.edge_sets.items()]:
    write_table(one, folder / one.metadata.filename, read(name, one))
