"""Writes and reads each of the formats: `formats.py FOLDER`."""

import sys
from pathlib import Path

import numpy as np

from streamd.tfgnn.records.convert import to_hetero_data
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.record_batches import read_batches
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, ragged
from streamd.tfgnn.sampling.spec import parse_spec
from streamd.tfgnn.schema.schema import parse_schema, schema_text
from streamd.tfgnn.tables.reading import read_table, table_path

folder = Path(sys.argv[1])
schema = parse_schema(b"""
node_sets { key: "paper" value {
  features { key: "year" value { dtype: DT_INT64 } }
  features { key: "words" value { dtype: DT_STRING shape { dim { size: -1 } } } } } }
edge_sets { key: "cites" value { source: "paper" target: "paper" metadata { filename: "cites.csv" } } }
""")
spec = parse_spec(
    b"""
seed_op { op_name: "seed" node_set_name: "paper" }
sampling_ops { op_name: "hop" input_op_names: "seed" edge_set_name: "cites" sample_size: 8 strategy: RANDOM_UNIFORM }
""",
    schema,
)
(folder / "schema.pbtxt").write_text(schema_text(schema))

# A graph of two papers, one of which has no words and cites the other.
words = ragged(schema.node_sets["paper"].features["words"], [["temporal", "graphs"], []])
paper = Nodes(sizes_C=np.array([2]), features={"year": np.array([2020, 2024]), "words": words})
cites = Edges(sizes_C=np.array([1]), source_E=np.array([1]), target_E=np.array([0]))
graph = GraphTensor(node_sets={"paper": paper}, edge_sets={"cites": cites})

# Records of it, in three shards; then read again.
codec = Codec(schema)
codec.write(folder / "graphs.tfrecord@3", [graph] * 10)
for graph in codec.read(folder / "graphs.tfrecord@3"):
    data = to_hetero_data(graph, schema)
    print(
        graph.node_sets["paper"].features["words"].tolist(),
        data["paper", "cites", "paper"].edge_index,
    )

# Batches of 64 records, each as one graph that has the components of all.
for batch in read_batches(codec, folder / "graphs.tfrecord@3", 64):
    print(batch.node_sets["paper"].sizes_C, batch.edge_sets["cites"].target_E)

# A table: 8,192 rows at once.
edges = schema.edge_sets["cites"]
(folder / "cites.csv").write_text("source,target,#weight\np1,p0,0.5\n")
for rows in read_table(edges, table_path(edges, folder)):
    print(rows.source, rows.target, rows.weight)
