"""The server's own graph, facts and node features, less than a second behind the log."""

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
"""Maximum of events added at once while requests wait: some milliseconds."""
SLICE_EDGES = 20_000
"""The same before the server is ready, when only health checks wait."""
CATCH_UP_EDGES = 250_000
"""The same for the graph alone."""


class ServerGraph:
    """Tails the log in slices and answers what is known of nodes. Owner: the engine.

    newest_us: event time of the newest event taken in, microseconds. included: the log's state at
    the newest commit that was taken in whole; while a slice of later ones is, it stays.
    looked_at: monotonic time at which nothing newer than that was committed.
    """

    def __init__(self, settings: ServingSettings, reader: LogReader, model: ModelSettings) -> None:
        """model: settings of the version that is served, which fix the facts' half-lives and
        bound."""
        # The live graph, as the version's settings have it.
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
        features = FeatureColumns(reader.state.schema, reader.node_sets_of)
        self.live = LiveGraph(
            reader, graph, model, settings.graph.keep_in_memory_seconds * 1_000_000, features
        )

        # What is stored of it, and what may be recommended from it.
        self.retention = ServingHold(settings.paths, self.live)
        self.candidates = Candidates(self.live, features, settings.max_candidates)
        self.newest_us = 0
        self.included = LogState(reader.state.schema)
        self.looked_at = self._refreshed_at = -math.inf
        self._began = False

    def suits(self, model: ModelSettings) -> bool:
        """Whether a version of these settings can serve with this graph and these facts."""
        return all(
            getattr(model, name) == getattr(self.model, name)
            for name in ("direction", "half_lives_seconds", "max_pairs")
        )

    @property
    def facts(self) -> SetFacts:
        return self.live.facts

    @property
    def edge(self) -> int:
        """Id of the next event to take in."""
        return self.live.edge

    @property
    def taken_in(self) -> tuple[int, int]:
        """Events in the graph and in the log, both since this object was made."""
        return self.live.graph.next_event - self._began_at, self.log.num_edges - self._began_at

    @property
    def caught_up(self) -> bool:
        return self.edge == self.log.num_edges == self.live.graph.next_event

    @property
    def watermark(self) -> int:
        """Event time, microseconds, up to which the events taken in are complete."""
        return self.log.watermark if self.caught_up else self.newest_us

    def follow(self, answering: bool = True) -> int:
        """Take in up to one slice of new events. answering: whether requests wait meanwhile;
        without them the graph catches up in long slices.

        The reader's segments are read to their end before it looks for more: they stay mapped until
        then, while retention may drop their files.
        Returns: number of events.
        """
        if self.caught_up:
            self._refreshed_at = time.monotonic()
            if not self.log.refresh() and self._began:
                self.looked_at = self._refreshed_at
                return 0
        self._began = True
        slices = (ANSWERING_EDGES, SLICE_EDGES) if answering else (SLICE_EDGES, CATCH_UP_EDGES)
        took = self.live.step(self.log.num_edges, *slices)

        # Node features as of the newest event that was taken in.
        if took:
            self.newest_us = int(self.log.time_of(np.array([self.edge - 1]))[0])
        self.live.take_features(self.edge)
        self.candidates.follow(self.caught_up)
        if self.caught_up:
            self.included = self.log.state
            self.looked_at = self._refreshed_at
        return took

    def ids(self, keys: list[Key]) -> Int64:
        """Node ids of keys, int64; UNKNOWN for a key never seen."""
        known = self.log.ids
        return np.array([known.get(k, UNKNOWN) for k in keys], np.int64)
