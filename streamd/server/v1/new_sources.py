"""Converts the features and the context of a new source, which has no events in the log."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import HTTPException

from streamd.decode.event_sets import EventSets, SetFeatures
from streamd.errors import BadEvent
from streamd.events import MICROSECONDS
from streamd.server.engine.set_names import Sets, in_set
from streamd.server.v1.request_parts import ContextEvent
from streamd.server.v1.schemas import RecommendRequest, ScoreRequest
from streamd.serving.requests import NewSource, SourceEvent
from streamd.settings.sets import MAX_FLOAT32

LATEST_US = 2**62


class NewSources:
    """Converts new sources by the declared sets and features. Owner: the server's state."""

    def __init__(self, sets: Sets, events: EventSets, time_unit: str) -> None:
        """events: reads the features of events. time_unit: of integers as times."""
        self._sets = sets
        self._events = events
        self._scale = MICROSECONDS[time_unit]

    def read(self, body: ScoreRequest | RecommendRequest, edge_set: int) -> NewSource | None:
        """Convert the new source of a request; None for a request about a source in the log.
        edge_set: number of the request's set. Raises: HTTPException."""
        if body.features is None and not body.context:
            return None

        # The features of the source, then its events.
        node_set = self._sets.endpoint_sets(edge_set)[0]
        features = None
        if body.features is not None:
            own = self._events.of_nodes[node_set]
            features = _features(own, body.features, "features")
        events = (
            self._event(one, edge_set, node_set, f"context[{i}]")
            for i, one in enumerate(body.context)
        )
        return NewSource(features, tuple(events))

    def _event(self, event: ContextEvent, asked_set: int, node_set: int, path: str) -> SourceEvent:
        """Convert one event of the context. asked_set: the edge set of the request. node_set: of
        its source. path: of the event in the request, for errors."""
        edge_set = asked_set if event.edge_set is None else self._sets.edge_set(event.edge_set)
        # The events of one source: all their sets begin at its node set.
        source, target = self._sets.endpoint_sets(edge_set)
        if source != node_set:
            raise HTTPException(
                422, f"{path}: the sources of edge set {event.edge_set} are other nodes"
            )
        return SourceEvent(
            dst=in_set(target, event.dst),
            time_us=None if event.time is None else min(event.time * self._scale, LATEST_US),
            edge_set=edge_set,
            features=_features(self._events.of_edges[edge_set], event.features, f"{path}.features"),
        )


def _features(
    declared: SetFeatures, given: list[float] | Mapping[str, Any] | None, path: str
) -> tuple[float, ...]:
    """Convert features to a row as the log stores it. Raises: HTTPException."""
    try:
        row: Sequence[float] = declared.one(given, path)
    except BadEvent as error:
        text = str(error)
        raise HTTPException(422, text if path in text else f"{path}: {text}") from None
    # `not (x <= y)`: unlike `x > y`, it is also true for NaN.
    for name, number in zip(declared.column_names, row, strict=True):
        if not abs(number) <= MAX_FLOAT32:
            raise HTTPException(422, f"{path}: {name} is out of range")
    return tuple(row)
