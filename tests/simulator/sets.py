"""Kinds of nodes and edges of a log that declares them, and its two topics: of streamd's own events, and of a shop's records that two
sources map."""

from streamd.events import SetKey
from tests.simulator.records import DELETE_EDGE, DELETE_NODE, EDGE, LABEL, NODE, REFUSED, SKIPPED

OWN, SHOP = "events", "shop"
EDGE_SETS = ("view", "follow", "buy")
"""By number: of users to items, of users to users, and one of users to items that logs declare later."""
LATER = 2
"""Number of the set that is declared later, of which the shop has no records."""
NODE_SETS = ("user", "item")
NUMBERED = {"features": {"number": "number"}}
SETTINGS = {
    "kafka__topics": [OWN, SHOP],
    "graph__node_sets": dict.fromkeys(NODE_SETS, NUMBERED),
    "graph__edge_sets": {"view": {"source": "user", "target": "item", **NUMBERED}, "follow": {"source": "user", "target": "user", **NUMBERED}},
    "sources": [
        {"topic": SHOP, "edge_set": "view", "time": "ms", "where": {"type": "view"},
         "fields": {"src": "user", "dst": "item", "time": "ts", "features": {"number": "number"}},
         "deletes": {"where": {"type": "unview"}, "fields": {"src": "user", "dst": "item", "time": "ts"}},
         "nodes": {"where": {"type": "stock"}, "node_set": "item", "fields": {"id": "item", "features": {"number": "number"}}}},
        {"topic": SHOP, "edge_set": "follow", "time": "ms", "where": {"type": "follow"},
         "fields": {"src": "user", "dst": "friend", "time": "ts", "features": {"number": "number"}},
         "deletes": {"where": {"type": "leave"}, "node_set": "user", "fields": {"node": "user"}}}]}
"""Of a log with these sets, in the place of widths of features."""
GROWN = {**SETTINGS["graph__edge_sets"], "buy": SETTINGS["graph__edge_sets"]["view"]}
"""Edge sets of a log that has grown."""


def target_of(edge_set, name):
    """The key of the target of an edge of a set."""
    return name if edge_set == 1 else SetKey(1, name)


def parts_of(key):
    """Name of the node set, and the key within it."""
    return (NODE_SETS[key.node_set], key.key) if isinstance(key, SetKey) else (NODE_SETS[0], key)


def own_fields(item):
    """An event as streamd's own, where there are sets."""
    name, key = parts_of(item.key)
    edge = {"edge_set": EDGE_SETS[item.edge_set], "src": key, "dst": item.target and parts_of(item.target)[1], "time": item.time_us // 1000}
    return {
        EDGE: {**edge, "features": [item.id]},
        REFUSED: {**edge, "edge_set": "none", "features": [1]},
        NODE: {"type": "node", "node_set": name, "id": key, "features": {"number": item.id}},
        LABEL: {"type": "label", "node_set": name, "node": key, "time": item.time_us // 1000, "target": [item.id]},
        DELETE_NODE: {"type": "delete", "node_set": name, "node": key},
        DELETE_EDGE: {**edge, "type": "delete"},
    }[item.kind]


def can_be_sold(item):
    """Whether the shop has a record for an event: it has none of deletes of items, of follows, of features of users, of
    labels, or of the later set."""
    name, _ = parts_of(item.key)
    return item.edge_set != LATER and {LABEL: False, NODE: name == "item", DELETE_NODE: name == "user", DELETE_EDGE: item.edge_set == 0}.get(item.kind, True)


def shop_fields(item):
    """An event as a record of the shop."""
    key = parts_of(item.key)[1]
    target = item.target and parts_of(item.target)[1]
    edge = {"user": key, ("item", "friend", "item")[item.edge_set]: target, "ts": item.time_us // 1000}
    return {
        EDGE: {"type": EDGE_SETS[item.edge_set], **edge, "number": item.id},
        REFUSED: {"type": "view", **edge, "number": "wrong"},
        SKIPPED: {"type": "ping", "user": key},
        NODE: {"type": "stock", "item": key, "number": item.id},
        DELETE_NODE: {"type": "leave", "user": key},
        DELETE_EDGE: {"type": "unview", **edge},
    }[item.kind]
