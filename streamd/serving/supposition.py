"""Supposes the features and first events of a source for one request: graph, facts, features,
candidates and version are for a moment as if the log had them, and then as before.

Nothing is written, and nothing else runs meanwhile: the owner of the graph does not await.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.eventlog.supposed_events import SupposedEvents
from streamd.events import Key
from streamd.graph.blocks.block_store import BlockGraph
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import UNKNOWN, LoadedVersion
from streamd.serving.requests import KnownSource, NewSource, NoContext, Recommend, Score


@contextmanager
def supposing(
    view: ServerGraph, served: LoadedVersion | None, request: Score | Recommend
) -> Iterator[LoadedVersion | None]:
    """Have, within a block, the source of a request as it supposes it. The graph has the whole log.
    Yields: the version as of then, None for the rule.

    1. The log gets the new keys and the events.
    2. Graph, facts and features follow it, then the candidates.
    3. The version follows the events, as far as they close chunks of its memory.

    Raises: KnownSource, NoContext.
    """
    new, log, live = request.new, view.log, view.live
    graph = live.graph
    assert new is not None and view.caught_up
    _check_source(view, request.src)
    if not isinstance(graph, BlockGraph):
        raise NoContext("features and context need a server with device: cpu, this one uses a GPU")

    # New nodes, in the order in which the log would number them.
    ends = dict.fromkeys([request.src, *(one.dst for one in new.events)])
    keys = [key for key in ends if key not in log.ids]
    new_nodes = np.arange(len(log.keys), len(log.keys) + len(keys))
    ids = {key: log.ids[key] for key in ends if key in log.ids}
    ids |= zip(keys, new_nodes.tolist(), strict=True)
    events = _events(log, new, request.src, ids)
    columns = events.src_E, events.dst_E, events.time_E

    # The memory as the first of the events finds it, which other queries share.
    edge, newest_us = view.edge, view.newest_us
    follows = served is not None and served.has_followed(edge, view.watermark)
    if served is not None and len(events.time_E):
        served = served.ahead(log, edge, int(events.time_E[0]))

    with ExitStack() as undo:
        # 1. The log.
        undo.enter_context(log.supposing(keys, events))
        # 2. Graph, facts, features and candidates.
        undo.enter_context(graph.supposing(events.src_E, events.dst_E, events.set_E))
        undo.enter_context(live.facts.supposing(*columns, events.set_E))
        if new.features is not None:
            values = np.array([new.features], np.float32)
            node_set = log.state.schema.ends_of(request.edge_set)[0]
            row_D = log.state.schema.node_rows(node_set, values)[0]
            undo.enter_context(view.features.supposing(ids[request.src], row_D, edge))
        if isinstance(request, Recommend):
            undo.enter_context(view.candidates.supposing())
        # 3. The version.
        if served is not None:
            one = served.supposing(log, view.edge, follows, new_nodes)
            served = undo.enter_context(one)
        try:
            view.newest_us = max([newest_us, *events.time_E[-1:].tolist()])
            yield served
        finally:
            view.newest_us = newest_us


def _check_source(view: ServerGraph, source: Key) -> None:
    """Check that a source has no event in any edge set. Raises: KnownSource."""
    node = view.ids([source])
    if node[0] != UNKNOWN and view.facts.is_known(node)[0]:
        raise KnownSource(
            "features and context are for a source without events, and the log has events of "
            "this one: leave them out, or send events with POST /v1/events"
        )


def _events(log: LogReader, new: NewSource, source: Key, ids: Mapping[Key, int]) -> SupposedEvents:
    """The events of a source as the log would have them. ids: of all its keys."""
    # An event before the newest one would be late, and get the newest time in the log.
    times = [log.watermark if one.time_us is None else one.time_us for one in new.events]
    time_E = np.maximum.accumulate(np.array([log.watermark, *times], np.int64))[1:]
    schema = log.state.schema
    rows_ED = np.zeros((len(times), schema.edge_feature_dim), np.float32)
    for row_D, one in zip(rows_ED, new.events, strict=True):
        row_D[:] = schema.edge_rows(one.edge_set, np.array([one.features], np.float32))[0]
    return SupposedEvents(
        src_E=np.full(len(times), ids[source]),
        dst_E=np.array([ids[one.dst] for one in new.events], np.int64),
        time_E=time_E,
        set_E=np.array([one.edge_set for one in new.events], np.int64),
        rows_ED=rows_ED,
    )
