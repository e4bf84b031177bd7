"""The graph and facts of the scoring role: they end at the next event to score."""

from collections.abc import Callable

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.serving.following_graph import CATCH_UP_EDGES, SLICE_EDGES, ServerGraph
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import ModelSettings


class ScoringGraph(ServerGraph):
    """A server's graph that moves event by event.

    Its facts end before the newest run of equal times, because a further event of that time, which
    a later commit may bring, must not see the others. Owner: the scorer.

    position: id of the next event to score.
    """

    def __init__(
        self,
        settings: ServingSettings,
        reader: LogReader,
        model: ModelSettings,
        goal: Callable[[], int],
    ) -> None:
        """goal: the event that it moves to while another graph still scores."""
        super().__init__(settings, reader, model)
        self.position = self.live.edge
        self._goal = goal

    @property
    def edge(self) -> int:
        return self.position

    @property
    def caught_up(self) -> bool:
        return self.position >= self._goal()

    @property
    def watermark(self) -> int:
        return self.newest_us

    def follow(self, answering: bool = True) -> int:
        """Move one slice towards the goal. Returns: number of events.

        The log is refreshed once all of its events are taken in, as in `ServerGraph.follow`.
        """
        goal = self._goal()
        if self.live.graph.next_event == self.position == self.log.num_edges < goal:
            self.log.refresh()
        return self.pass_over(goal)

    def run_start(self, end: int) -> int:
        """Id of the first event whose time is that of the event before `end`."""
        newest = int(self.log.time_of(np.array([end - 1]))[0])
        return max(self.log.lower_bound(newest), self.log.first_edge)

    def pass_over(self, until: int) -> int:
        """Move one slice towards an event without scoring any. Returns: number of events, in the
        graph alone if it is behind the facts."""
        live = self.live
        at = live.graph.next_event
        if at < live.edge:
            # After a restart, stored facts are ahead of the graph.
            live.insert(min(live.edge, at + CATCH_UP_EDGES))
            return live.graph.next_event - at
        end = min(until, self.log.num_edges, self.position + SLICE_EDGES)
        if end <= self.position:
            return 0
        moved = end - self.position
        self.advance_facts(self.run_start(end))
        self.move(end)
        return moved

    def advance_facts(self, until: int) -> None:
        """Let the facts take in the events up to the first of a run of equal times."""
        if until > self.live.edge:
            self.live.advance(*self.log.edges(self.live.edge, until))

    def move(self, end: int) -> None:
        """Mark the events below `end` as scored or skipped."""
        self.live.insert(end)
        self.newest_us = int(self.log.time_of(np.array([end - 1]))[0])
        self.position = end
