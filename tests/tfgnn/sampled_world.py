"""Small graphs at random, as tables and as the plain reference takes them."""

import random

import numpy as np

from streamd.tfgnn.records.tensor import Ragged
from streamd.tfgnn.sampling.spec import spec_text
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema, NodeSet, SamplingSpec
from streamd.tfgnn.schema.schema import new_feature, schema_text
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table

YEAR, SCORE, WORDS, ID = new_feature("DT_INT64"), new_feature("DT_FLOAT"), new_feature(
    "DT_STRING", (None,)), new_feature("DT_STRING")
SETS = {"cites": ("paper", "paper"), "written": ("paper", "author"), "has": ("paper", "topic")}
OPS = [
    ("hop", ("seed",), "cites", 3, "RANDOM_UNIFORM"),
    ("hop 2", ("seed", "hop"), "cites", 2, "RANDOM_WEIGHTED"),
    ("by", ("hop", "hop 2"), "written", 2, "LATEST_K"),
    ("on", ("seed", "hop 2"), "has", 2, "TOP_K"),
]
#   paper --cites--> paper --written--> author
#     \--has--> topic (without a table)


def texts(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


class World:
    """Tables below a folder; `nodes` and `edges` as the reference takes them."""

    def __init__(self, path, seed, num=30, num_edges=100, shards=""):
        draw = random.Random(seed)
        self.path, self.ops, self.sets = path, OPS, SETS
        names = {"paper": [b"p%d" % i for i in range(num)], "author": [b"a%d" % i for i in range(9)], "topic": [b"t%d" % i for i in range(5)]}
        self.nodes = {"paper": {id: (1900 + i, (b"w",) * (i % 3)) for i, id in enumerate(names["paper"][:-2])},
                      "author": dict.fromkeys(names["author"], ()), "topic": None}
        self.edges = {}
        for name, (source, target) in SETS.items():
            # Parallel edges, some the same in all, some in all but their feature; ids that no table has; weights of 0.
            rows = [(draw.choice(names[source]), draw.choice(names[target]), draw.randrange(20), draw.choice([0.0, 0.5, 0.5, 1.0, 3.5]),
                     (draw.randrange(3),) if name == "written" else ()) for _ in range(num_edges)]
            rows += rows[:5] + [(*row[:4], (7,) if row[4] else ()) for row in rows[:5]]
            # A hub.
            rows += [(names[source][0], draw.choice(names[target]), draw.randrange(20), draw.random().__round__(2), (1,) if name == "written" else ())
                     for _ in range(num_edges)]
            # Weights are float32 in tables.
            self.edges[name] = [(s, t, time, float(np.float32(w)), f) for s, t, time, w, f in rows]
        self.write(shards, draw)

    def write(self, shards="", draw=None, name=""):
        """Write schema, spec and tables, with the rows in another order each time."""
        end = ".tfrecord" + shards
        node_sets = {
            "paper": NodeSet(features={"#id": ID, "year": YEAR, "words": WORDS}, metadata={"filename": "paper" + end}),
            "author": NodeSet(metadata={"filename": "author.csv"}), "topic": NodeSet()}
        edge_sets = {
            "cites": EdgeSet(source="paper", target="paper", metadata={"filename": "cites" + end}),
            "written": EdgeSet(source="paper", target="author", features={"position": YEAR},
                               metadata={"filename": "writes.csv" + shards, "extra": [{"key": "edge_type", "value": "reversed"}]}),
            "has": EdgeSet(source="paper", target="topic", metadata={"filename": "has.csv"})}
        self.schema = GraphSchema(node_sets=node_sets, edge_sets=edge_sets)
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "graph.pbtxt").write_text(schema_text(self.schema))
        self.write_spec()
        draw = draw or random.Random(0)
        papers = list(self.nodes["paper"].items())
        draw.shuffle(papers)
        lengths = np.array([len(f[1]) for _, f in papers])
        features = {"#id": texts([id for id, _ in papers]), "year": np.array([f[0] for _, f in papers]),
                    "words": Ragged((None,), texts([w for _, f in papers for w in f[1]]), (lengths,))}
        write_table(node_sets["paper"], self.path / node_sets["paper"].metadata.filename, [Rows(first=0, num=len(papers), ids=features["#id"], features=features)])
        authors = list(self.nodes["author"])
        write_table(node_sets["author"], self.path / "author.csv", [Rows(first=0, num=len(authors), ids=texts(authors))])
        for set_name, one in edge_sets.items():
            rows = self.edges[set_name][:]
            draw.shuffle(rows)
            columns = Rows(first=0, num=len(rows), source=texts([r[0] for r in rows]), target=texts([r[1] for r in rows]),
                           time=np.array([r[2] for r in rows]), weight=np.array([r[3] for r in rows], np.float32),
                           features={"position": np.array([r[4][0] for r in rows])} if one.features else {})
            write_table(one, self.path / one.metadata.filename, [columns])

    def write_spec(self):
        """Write the spec of the operations."""
        self.spec = SamplingSpec(seed_op={"op_name": "seed", "node_set_name": "paper"}, sampling_ops=tuple(
            {"op_name": n, "input_op_names": i, "edge_set_name": e, "sample_size": k, "strategy": s} for n, i, e, k, s in self.ops))
        (self.path / "spec").mkdir(exist_ok=True)
        (self.path / "spec" / "spec.pbtxt").write_text(spec_text(self.spec))

    def seeds(self, rows, is_timed):
        """Write a table of seeds."""
        lines = [f"{id.decode()},{time}" if is_timed else id.decode() for id, time in rows]
        path = self.path / "seeds.csv"
        path.write_text("\n".join(["id,time" if is_timed else "id", *lines]) + "\n")
        return path
