"""A log of random events, and the same as the plain reference takes it: from the events alone."""

import random

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.tfgnn.logs.declared import declared_sets
from streamd.tfgnn.logs.sampling_run import LogSource, plan_log_run, sample_log
from streamd.tfgnn.sampling.spec import spec_text
from streamd.tfgnn.schema.messages import SamplingSpec
from tests.tfgnn.test_tables import shop, write

#   user --views--> item (and back, as rev_views),  user --follows--> user
TEXT = """
graph:
  node_sets:
    user: {features: {age: number, country: {categories: [de, fr]}}}
    item: {features: {price: number}}
  edge_sets:
    views: {source: user, target: item, features: {weight: number, agent: {categories: [a, b]}}}
    follows: {source: user, target: user}
"""
SETS = {"views": ("user", "item"), "rev_views": ("item", "user"), "follows": ("user", "user"), "rev_follows": ("user", "user")}
OPS = [
    ("seen", ("seed",), "views", 3, "RANDOM_WEIGHTED"),
    ("back", ("seen",), "rev_views", 2, "TOP_K"),
    ("friends", ("seed", "back"), "follows", 2, "LATEST_K"),
    ("theirs", ("friends",), "views", 2, "RANDOM_UNIFORM"),
]
NOTHING = {"user": (0.0, b""), "item": (0.0,)}
BEGIN = 1_600_000_000_000_000


class LiveWorld:
    """Events of some users and items, many of one time, with deletes; in the end a node is deleted."""

    def __init__(self, path, seed=0, num=300, ops=OPS):
        self.path, self.ops = path, ops
        path.mkdir(parents=True, exist_ok=True)
        draw = random.Random(seed)
        users, items = [f"u{i}" for i in range(9)] + [7, 8], [f"i{i}" for i in range(7)]
        self.time, self.events, made = BEGIN, [], []
        for n in range(num):
            self.time += draw.choice([0, 0, 1, 5])
            kind, user = draw.random(), draw.choice(users)
            if kind < 0.12:
                self.events.append({"type": "node", "node_set": "user", "id": user, "features": {"age": n / 2, "country": draw.choice(["de", "fr", "x"])}})
            elif kind < 0.2:
                self.events.append({"type": "node", "node_set": "item", "id": draw.choice(items), "features": {"price": float(n)}})
            elif kind < 0.25 and made:
                self.events.append({"type": "delete", **draw.choice(made)})
            elif kind < 0.7:
                # A hub in the middle; parallel edges, some the same in all; weights of 0.
                user = "u0" if draw.random() < 0.3 else user
                made.append({"edge_set": "views", "src": user, "dst": draw.choice(items), "time": self.time})
                self.events.append({**made[-1], "features": {"weight": draw.choice([0.0, 0.5, 0.5, 2.0]), "agent": draw.choice("ab")}})
            else:
                made.append({"edge_set": "follows", "src": user, "dst": draw.choice(users), "time": self.time})
                self.events.append(made[-1])
        self.events.append({"type": "delete", "node_set": "user", "node": "u3"})
        self.settings = shop(path, TEXT)
        self.log = write(self.settings, self.events)
        self.write_spec()

    def write_spec(self, ops=None, seed_set="user"):
        ops = self.ops if ops is None else ops
        spec = SamplingSpec(seed_op={"op_name": "seed", "node_set_name": seed_set}, sampling_ops=tuple(
            {"op_name": n, "input_op_names": i, "edge_set_name": e, "sample_size": k, "strategy": s} for n, i, e, k, s in ops))
        self.spec = self.path / "spec.pbtxt"
        self.spec.write_text(spec_text(spec))

    def seeds(self, rows, is_timed, name="seeds.csv"):
        lines = [f"{id.decode()},{time}" if is_timed else id.decode() for id, time in rows]
        (self.path / name).write_text("\n".join(["id,time" if is_timed else "id", *lines]) + "\n")
        return self.path / name

    def source(self, **options):
        log = LogReader.open(self.settings.data_dir)
        return LogSource(log=log, declared=declared_sets(self.settings, log.state.schema), **options)

    def run(self, output, progress=lambda *_: None, **options):
        source = self.source()
        return sample_log(plan_log_run(source.declared, self.spec, output, **{"with_reverse": True, **options}), source, progress)

    def times(self):
        return sorted({e["time"] for e in self.events if "time" in e})

    def plain(self, until=None):
        """Nodes with the features in force before a time, and all edges, as the reference takes them."""
        return plain_graph(self.events, until)


def plain_graph(events, until=None):
    """The graph of events. An update is in force from a time on if all edges before it are earlier."""
    nodes, newest = {"user": {}, "item": {}}, None
    edges = {"views": [], "follows": []}
    ends = {"views": ("user", "item"), "follows": ("user", "user")}
    for e in events:
        if e.get("type") == "node":
            table, id = nodes[e["node_set"]], str(e["id"]).encode()
            table.setdefault(id, NOTHING[e["node_set"]])
            if until is None or newest is None or newest < until:
                country = {"de": b"de", "fr": b"fr"}
                f = e["features"]
                table[id] = (f["age"], country.get(f["country"], b"other")) if e["node_set"] == "user" else (f["price"],)
        elif e.get("type") == "delete" and "node" in e:
            gone = str(e["node"]).encode()
            del nodes[e["node_set"]][gone]
            for name, found in edges.items():
                edges[name] = [x for x in found if all((s, x[i]) != (e["node_set"], gone) for i, s in enumerate(ends[name]))]
        elif e.get("type") == "delete":
            name = (str(e["src"]).encode(), str(e["dst"]).encode(), e["time"])
            edges[e["edge_set"]] = [x for x in edges[e["edge_set"]] if x[:3] != name]
        else:
            newest, ids = e["time"], [str(e[k]).encode() for k in ("src", "dst")]
            for set_name, id in zip(ends[e["edge_set"]], ids, strict=True):
                nodes[set_name].setdefault(id, NOTHING[set_name])
            f = e.get("features")
            edges[e["edge_set"]].append((*ids, e["time"], f and f["weight"], (e["time"], f["agent"].encode(), f["weight"]) if f else (e["time"],)))
    for name in list(edges):
        edges[f"rev_{name}"] = [(t, s, *rest) for s, t, *rest in edges[name]]
    return nodes, edges


def spelled(graph):
    """The nodes of a graph with their features, by set, and its edges with theirs, in order."""
    ids, nodes, edges = {}, {}, {}
    for name, columns in (("user", ("age", "country")), ("item", ("price",))):
        features = graph.node_sets[name].features
        ids[name] = features["#id"].tolist()
        nodes[name] = list(zip(ids[name], zip(*(features[c].tolist() for c in columns), strict=True), strict=True))
    for name, (source, target) in SETS.items():
        if name in graph.edge_sets:
            one = graph.edge_sets[name]
            columns = ("#time", "agent", "weight") if "views" in name else ("#time",)
            rows = zip(*(np.asarray(one.features[c]).tolist() for c in columns), strict=True)
            edges[name] = [(ids[source][s], ids[target][t], f) for s, t, f in zip(one.source_E, one.target_E, rows, strict=True)]
    return nodes, edges
