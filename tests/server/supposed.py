"""A server whose log has what another server supposes, and all that a supposition could leave in a server."""

import dataclasses
import hashlib
import shutil
from contextlib import contextmanager

import numpy as np
from prometheus_client import REGISTRY

from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, SetKey, empty_batch
from streamd.graph.blocks.hops import Roots, distinct_nodes
from streamd.graph.facts.fact_arrays import HASHED_ARRAYS, NODE_ARRAYS, PAIR_ARRAYS
from tests.server.world import World, wait


def append_source(path, schema, source, features, events):
    """Commits what a source did: a row of features, if it has one, then its events, (dst, time, row of features, edge set)
    each. Keys are those of the log."""
    writer = LogWriter(path, schema, 100_000)
    # As ingest numbers them.
    known, new = writer.keys, []
    for key in dict.fromkeys([source, *(dst for dst, *_ in events)]):
        if key not in known:
            known[key] = len(new) + writer.num_nodes
            new.append(key)
    rows = empty_batch(schema)
    if features is not None:
        node_set = source.node_set if isinstance(source, SetKey) else 0
        rows = dataclasses.replace(
            rows, node_F=np.array([known[source]]), node_row_F=np.zeros(1, np.int64), node_edge_F=np.zeros(1, np.int64),
            node_values_F=schema.node_rows(node_set, np.array([features], np.float32)))
    times = np.maximum.accumulate(np.array([writer.watermark, *(writer.watermark if t is None else t for _, t, *_ in events)]))[1:]
    msg = [schema.edge_rows(number, np.array([row], np.float32))[0] for *_, row, number in events]
    rows = dataclasses.replace(
        rows, src_E=np.full(len(events), known[source]), dst_E=np.array([known[dst] for dst, *_ in events], np.int64), time_E=times,
        msg_ED=np.array(msg, np.float32).reshape(len(events), schema.edge_feature_dim), new_keys=tuple(new))
    writer.commit(rows, Progress(), int(max([writer.watermark, *times])))
    edges = writer.num_edges
    writer.close()
    return edges


@contextmanager
def after(path, copy, chosen, schema, source, features, events):
    """A server on a copy of a log and its versions, to which a source's events came."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("roles"))
    edges = append_source(copy, schema, source, features, events)
    world = World.of(copy, chosen(copy)).start()
    champion = world.registry.champion()
    try:
        wait(lambda: world.engine.status.edge == edges and world.engine.status.version == (champion or "rule"), 90)
        yield world
    finally:
        world.stop()


def traces(world) -> dict[str, str]:
    """A digest of each part of the state of a server's engine."""
    follower = world.engine._follower
    view, served = follower.view, follower.served
    log, live = view.log, view.live
    found = {"log": (log.state, log.keys, sorted(log.ids.items(), key=str), log.node_sets_of(np.arange(log.num_nodes)), log.columns.end),
             "position": (view.edge, view.newest_us, view.included, view.watermark)}

    # Facts, with what only the arrays in memory have.
    for number, one in enumerate((live.facts.all, *live.facts.per_set)):
        f = one._f
        found[f"facts {number}"] = (one.tensors(), one.num_forgotten, np.sort(f.slots))
        rows = {n: getattr(f, n)[: log.num_nodes + 99] for n in NODE_ARRAYS} | {n: getattr(f, n)[: one.num_pairs] for n in PAIR_ARRAYS}
        found[f"arrays {number}"] = rows | {n: getattr(f, n) for n in (*HASHED_ARRAYS, "totals", "size")}
    found["destinations"] = [one.destination_order for one in live.facts._by_node_set], live.facts._num_sorted

    # The graph by what is sampled of it, at all cuts.
    graph = live.graph
    for (number, direction), store in graph.stores.items():
        arrays = store.arrays
        found[f"store {number} {direction}"] = (arrays.nodes[: 4 * (log.num_nodes + 99)], arrays.hidden[: log.num_nodes + 99], arrays.used, store.num_nodes, store.next_event)
    nodes = np.arange(log.num_nodes)
    for before in (log.num_edges // 2, log.num_edges, log.num_edges + 99):
        draws = view.live.graph.sample_neighborhood(Roots(nodes, 0, before), plan_of(view), distinct_nodes)
        found[f"neighbors {before}"] = [(hop.eid_UK, hop.mask_UK) for hop in draws.hops]

    features = view.features
    found["features"] = features.of(nodes), features.positions.ages(nodes, 2**40), features._has_row[: len(nodes)], features._updated, features.positions._num_rows
    beyond = nodes + len(nodes)
    # The warm-up supposes a source as well, so a digest alone would not show a row that stays.
    assert not features.positions.has_row(beyond).any() and not features._values[log.num_nodes :].any()
    assert np.isnan(features.numbers(beyond, 0, 1)).all()
    pools = view.candidates._pools
    found["pools"] = [(key, pool._num_seen, pool.popular._members, pool.popular._most_left_out, pool.popular.is_whole) for key, pool in
                      sorted(pools._pools.items(), key=str)], pools._edge, pools._num_deletes
    if served is not None:
        new = np.arange(log.num_nodes, log.num_nodes + 99)
        found["memory"] = {n: t.numpy() for n, t in served.memory.tensors().items()}, served.memory.edge, served.memory.now_us
        found["version"] = served.manifest, served._followed, served._embeddings.has(new), rate_of(served.model)
    return {name: hashlib.sha256(repr_of(value).encode()).hexdigest() for name, value in found.items()}


def plan_of(view):
    from streamd.graph.blocks.draws import Draw

    return [Draw(direction=view.model.direction, fanout=8)] * 2


def rate_of(model):
    return model._new._logit_S if hasattr(model, "_new") else model.model.new_destinations.counts.numpy()


def repr_of(value) -> str:
    """All of a value, arrays by their bytes."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, dict):
        return repr({str(k): repr_of(v) for k, v in value.items()})
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return repr([repr_of(v) for v in value])
    return repr(value)


def gauges() -> dict[str, float]:
    """Metrics that describe the state."""
    names = ("streamd_graph_bytes", "streamd_nodes", "streamd_pairs", "streamd_seen_edges", "streamd_memory_lag_edges")
    return {s.name: s.value for m in REGISTRY.collect() for s in m.samples if s.name.startswith(names)}
