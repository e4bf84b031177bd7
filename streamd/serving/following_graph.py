"""The server's own graph, facts and node features, less than a second older than the log."""

import math
import time

import numpy as np

from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.reader import LogReader
from streamd.events import Int64, Key
from streamd.gpu import make_graph
from streamd.graph.facts.set_facts import SetFacts
from streamd.graph.live import LiveGraph, read_back
from streamd.serving.candidates import Candidates
from streamd.serving.feature_columns import FeatureColumns
from streamd.serving.loaded_version import UNKNOWN
from streamd.serving.retention_hold import ServingHold
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import ModelSettings

ANSWERING_EDGES = 4_000
"""Maximum number of events that are added at once while requests wait: some milliseconds."""
SLICE_EDGES = 20_000
"""The same before the server is ready, when only health checks wait."""
CATCH_UP_EDGES = 250_000
"""The same for the graph alone, while it has fewer events than the facts."""


class ServerGraph:
    """Reads the log in slices into graph, facts and features. Owner: the engine.

    newest_us: time of the newest event in the graph, microseconds. included: the log's state at the
    newest commit that the graph has completely; it does not change while a part of later commits is
    missing. looked_at: monotonic time at which the log had no newer commit than `included`.
    """

    def __init__(self, settings: ServingSettings, reader: LogReader, model: ModelSettings) -> None:
        """model: settings of the version that serves, which determine the facts' half-lives and
        capacity."""
        # The live graph, by the version's settings.
        self.log = reader
        self.model = model
        self._began_at = reader.first_edge
        graph = make_graph(
            settings.graph,
            settings.gpu,
            settings.device,
            reader.first_edge,
            model.direction,
            read_back(reader),
        )
        self.features = features = FeatureColumns(reader.state.schema, reader.node_sets_of)
        self.live = LiveGraph(
            reader, graph, model, settings.graph.keep_in_memory_seconds * 1_000_000, features
        )

        # The parts that store its state, and find candidates in it.
        self.retention = ServingHold(settings.paths, self.live)
        self.candidates = Candidates(self.live, features, settings.max_candidates)
        self.newest_us = 0
        self.included = LogState(reader.state.schema)
        self.looked_at = self._refreshed_at = -math.inf
        self._began = False

    def suits(self, model: ModelSettings) -> bool:
        """Whether a version with these settings can serve with this graph and these facts."""
        return all(
            getattr(model, name) == getattr(self.model, name)
            for name in ("direction", "half_lives_seconds", "max_pairs")
        )

    @property
    def facts(self) -> SetFacts:
        return self.live.facts

    @property
    def edge(self) -> int:
        """Id of the next event to read."""
        return self.live.edge

    @property
    def taken_in(self) -> tuple[int, int]:
        """Number of events in the graph and in the log, both from the log's first event when this
        object was made."""
        return self.live.graph.next_event - self._began_at, self.log.num_edges - self._began_at

    @property
    def caught_up(self) -> bool:
        return self.edge == self.log.num_edges == self.live.graph.next_event

    @property
    def watermark(self) -> int:
        """Event time in microseconds up to which the graph has all events."""
        return self.log.watermark if self.caught_up else self.newest_us

    def follow(self, answering: bool = True) -> int:
        """Add up to one slice of new events. answering: whether requests wait meanwhile; otherwise
        the graph catches up in long slices. Returns: number of events.

        1. Refresh the reader, but only once the graph has all events that it maps: until a refresh,
           its segments stay mapped even if retention drops their files.
        2. Add the events to graph and facts.
        3. Apply the node features up to the newest of these events, then update the candidates,
           whose filters read the features.
        4. Advance `included` only if the graph has the whole log as of the refresh; otherwise
           answers would report a commit of which they lack events.
        """
        if self.caught_up:
            # 1. Refresh.
            self._refreshed_at = time.monotonic()
            if not self.log.refresh() and self._began:
                self.looked_at = self._refreshed_at
                return 0
        self._began = True
        slices = (ANSWERING_EDGES, SLICE_EDGES) if answering else (SLICE_EDGES, CATCH_UP_EDGES)
        # 2. Events.
        took = self.live.step(self.log.num_edges, *slices)

        # 3. Node features as of the newest event, then candidates.
        if took:
            self.newest_us = int(self.log.time_of(np.array([self.edge - 1]))[0])
        self.live.take_features(self.edge)
        self.candidates.follow(self.caught_up)
        if self.caught_up:
            # 4. The position.
            self.included = self.log.state
            self.looked_at = self._refreshed_at
        return took

    def ids(self, keys: list[Key]) -> Int64:
        """Node ids of keys, int64; UNKNOWN for an unknown key."""
        known = self.log.ids
        return np.array([known.get(k, UNKNOWN) for k in keys], np.int64)
