"""A shop: a log of users and items with declared features, a deleted item, and a server on it."""

import dataclasses

import numpy as np

from streamd.decode.encoding import Feature
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, SetKey, empty_batch
from streamd.settings.loading import schema_of
from streamd.settings.sets import EdgeSetSettings, FeatureSettings, SetSettings
from tests.builders import HOUR, batch, settings, stream
from tests.server.world import World

USERS, ITEMS, EDGES = 30, 300, 2000
CATEGORIES = ("shoes", "hats", "bags", 7)
FEATURES = {
    "category": FeatureSettings(categories=CATEGORIES),
    "price": FeatureSettings(type="number"),
    "in_stock": FeatureSettings(type="bool"),
    "brand": FeatureSettings(hash=8),
    "look": FeatureSettings(vector=2),
    "title": FeatureSettings(text=4),
}
GONE = USERS + 1
"""The item that is deleted."""
BARE = 10
"""The last items have no features."""


def catalogue(seed=0):
    """Item number -> its features. The first ones are rare: one per cent are bags."""
    rng = np.random.default_rng(seed)
    return {
        i: {"category": "bags" if i % 100 == 50 else "shoes" if rng.random() < 0.6 else ["hats", "7", "scarves"][rng.integers(3)],
            "price": round(float(rng.uniform(1, 100)), 1), "in_stock": bool(rng.random() < 0.5), "brand": f"brand {rng.integers(5)}",
            "look": [1.0, 0.0], "title": f"item {i}"}
        for i in range(ITEMS - BARE)}


SETS = {
    "graph__node_sets": {"user": SetSettings(features={"age": FeatureSettings(type="number"), "category": FeatureSettings(categories=("vip",))}),
                         "item": SetSettings(features=FEATURES)},
    "graph__edge_sets": {"views": EdgeSetSettings(source="user", target="item"), "follows": EdgeSetSettings(source="user", target="user")}}
"""Settings of the same shop with kinds of nodes and edges. Its keys are numbers within their sets."""


def shop_settings(path, **values):
    return settings(path, **({"graph__node_sets": {"default": SetSettings(features=FEATURES)}} | values))


def rows_of(items):
    """The log's rows of features of several items, float32[N, width]."""
    return np.array([[x for name, one in FEATURES.items() for x in Feature(name, one).one(item[name], name)] for item in items], np.float32)


def update(writer, schema, catalogue):
    """Commits the features of items, as node events."""
    nodes = np.array(list(catalogue)) + USERS
    none = np.zeros(len(nodes), np.int64)
    rows = dataclasses.replace(empty_batch(schema), node_F=nodes, node_row_F=np.arange(len(nodes)), node_edge_F=none,
                               node_values_F=schema.node_rows(schema.num_node_sets - 1, rows_of(list(catalogue.values()))))
    writer.commit(rows, Progress(), writer.watermark)


def write_shop(path, chosen):
    """Writes the log. Keys are "user:<n>" and "item:<n>", or of kinds of nodes numbers. Returns: its edges."""
    schema = schema_of(chosen)
    src, dst, time = stream(EDGES, USERS, ITEMS, seed=5)
    # Every item has had an event.
    dst[:ITEMS] = USERS + np.arange(ITEMS)
    keys = [*(f"user:{i}" for i in range(USERS)), *(f"item:{i}" for i in range(ITEMS))]
    rows = batch(schema, src, dst, time)
    if schema.node_sets:
        keys = [*range(USERS), *(SetKey(1, i) for i in range(ITEMS))]
        sets = np.arange(EDGES) % 10 == 9
        dst[sets] = (src[sets] + 1) % USERS
        dst[:ITEMS] = USERS + np.arange(ITEMS)
        sets[:ITEMS] = False
        rows = dataclasses.replace(rows, msg_ED=np.stack([~sets, sets], 1).astype(np.float32))
    writer = LogWriter(path, schema, 100_000)
    writer.keys.update({key: i for i, key in enumerate(keys)})
    writer.commit(dataclasses.replace(rows, new_keys=tuple(keys)), Progress(), int(time[-1]))
    # What is in force is the newest update.
    update(writer, schema, catalogue(seed=1))
    update(writer, schema, catalogue())
    gone = np.zeros(1, DELETION)
    gone["src"], gone["dst"], gone["time"] = GONE, -1, -1
    writer.keys.pop(keys[GONE])
    writer.commit(dataclasses.replace(empty_batch(schema), deletions_X=gone), Progress(), 100 * HOUR)
    writer.close()
    return src, dst, time


def open_shop(path, **values):
    """A server on the shop's log."""
    chosen = shop_settings(path, **values)
    write_shop(path, chosen)
    return World.of(path, chosen)


def post(world, path, body, status=200):
    answer = world.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def names(answer):
    return [one["dst"] for one in answer["scores"]]
