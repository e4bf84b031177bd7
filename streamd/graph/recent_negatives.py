"""Recent negatives: a share of the negatives for learning are destinations of the newest events.

Each is drawn as often as it occurs among these events, popular ones more often than others. Alone
that would teach the model that popular destinations are wrong. So the loss subtracts the log of a
candidate's draw frequency from its logit (sampled softmax: Jean et al. 2015, section 3.2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.graph.negatives import LEARNED_SEED, NUM_LEARNED, Pools, hashes

RECENT_EVENTS = 10_000
"""Newest events whose destinations are drawn: enough to estimate popularity, few enough to be read
and counted for every window."""
RECENT_SEED = 2
"""Not the seed of uniform negatives: equal hashes would couple the two draws."""
MILLION = 1_000_000
"""Shares are exact to so many parts of one negative."""
NUMBER_SEED = 3
"""Of the hash that decides how many of an event's negatives are recent ones."""


@dataclass(frozen=True, slots=True)
class RecentDestinations:
    """Destinations of the newest events until a window's end, all of them in its pools.

    dst_R: int64[R] node ids, one for each event. share: of the NUM_LEARNED negatives of events,
    those that are drawn from them.
    """

    dst_R: Int64
    share: float

    @classmethod
    def until(cls, log: LogReader, end_edge: int, share: float) -> "RecentDestinations":
        """The newest before event `end_edge`, without deleted ones. share: of the negatives."""
        # Nothing is read for uniform negatives.
        if not share:
            return cls(np.zeros(0, np.int64), 0.0)
        first = max(log.first_edge, end_edge - RECENT_EVENTS)
        src_R, dst_R, _ = log.edges(first, end_edge)
        return cls(dst_R[~log.deletions.hides(first, src_R, dst_R)], share)

    def num_drawn(self, event_E: Int64) -> Int64:
        """How many of the NUM_LEARNED negatives of each event are recent ones: int64[E].

        The share of them if that is a whole number. Else the whole number below or above, by a hash
        of the event, so that the share is exact on average. event_E: int64 event ids.
        """
        # Products such as .7 x 10 are off their whole number by rounding.
        in_millionths = round(self.share * NUM_LEARNED * MILLION)
        whole, rest = divmod(in_millionths, MILLION)
        drawn = hashes(event_E, 1, NUMBER_SEED)[:, 0] % np.uint64(MILLION)
        number_E: Int64 = whole + (drawn < np.uint64(rest)).astype(np.int64)
        return number_E


def draw_for_learning(
    pools: Pools, recent: RecentDestinations, event_E: Int64, dst_E: Int64
) -> tuple[Int64, Float32]:
    """Draw the negatives that events are learned with: the first `recent.num_drawn` of each event
    from the destinations of recent events of the same node set, the others uniformly among all that
    are known at the window's end.

    A uniform one replaces a true destination, and is kept if no recent event has a destination of
    the node set. An event with NUM_LEARNED others or fewer has each of them once, as of
    `Pool.draw`. event_E: int64 event ids. dst_E: int64 true destinations.

    Returns: int64[E, 10]; log of each candidate's draw frequency, the true one first, relative to
    uniform draws: float32[E, 11], 0 if all are uniform. That of the true one is for events with
    another true one.
    """
    # Uniform ones first.
    sizes_E = pools.sizes(dst_E)
    negatives = pools.draw(event_E, dst_E, sizes_E, NUM_LEARNED, LEARNED_SEED)
    log_draws = np.zeros((len(dst_E), 1 + NUM_LEARNED), np.float32)
    if not recent.share:
        return negatives, log_draws

    # Then recent ones, node set by node set.
    num_others_E = pools.num_others(dst_E, sizes_E)
    set_E, set_R = pools.node_sets_of(dst_E), pools.node_sets_of(recent.dst_R)
    for number in np.unique(set_E):
        rows = np.flatnonzero((set_E == number) & (num_others_E > NUM_LEARNED))
        dst_R = recent.dst_R[set_R == number]
        if not len(rows) or not len(dst_R):
            continue

        # They fill the first columns, except true destinations.
        num_drawn_E = recent.num_drawn(event_E[rows])
        is_recent_EC: Bools = np.arange(NUM_LEARNED) < num_drawn_E[:, None]
        h = hashes(event_E[rows], NUM_LEARNED, RECENT_SEED)
        drawn = dst_R[(h % np.uint64(len(dst_R))).astype(np.int64)]
        true = dst_E[rows, None]
        negatives[rows] = np.where(is_recent_EC & (drawn != true), drawn, negatives[rows])

        candidates = np.concatenate([true, negatives[rows]], 1)
        log_draws[rows] = log_draw_frequency(candidates, dst_R, num_others_E[rows], num_drawn_E)
    return negatives, log_draws


def log_draw_frequency(
    candidate_EC: Int64, dst_R: Int64, num_others_E: Int64, num_drawn_E: Int64
) -> NDArray[np.float64]:
    """Log of the frequency of draws relative to uniform draws: float64[E, 11], true ones first.

    num_others_E: destinations that uniform ones are drawn from. num_drawn_E: number of recent ones
    among the negatives, both int64[E].
    """
    # The share of each candidate among the recent destinations.
    node_N, count_N = np.unique(dst_R, return_counts=True)
    at = np.minimum(np.searchsorted(node_N, candidate_EC), len(node_N) - 1)
    recent_EC = np.where(node_N[at] == candidate_EC, count_N[at], 0) / len(dst_R)

    # A uniform one replaces a true one that was drawn.
    draws_EC = recent_EC * num_others_E[:, None]
    draws_EC[:, 1:] += recent_EC[:, :1]
    share_E1 = num_drawn_E[:, None] / NUM_LEARNED
    out: NDArray[np.float64] = np.log(share_E1 * draws_EC + (1 - share_E1))
    return out
