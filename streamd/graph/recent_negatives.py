"""Recent negatives: a share of the negatives for training are destinations of the newest events.

They are drawn by their frequency among these events. By itself this would teach the model that
popular destinations are wrong, so the loss subtracts the log of a candidate's draw frequency from
its logit (sampled softmax: Jean et al. 2015, section 3.2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.graph.negatives import LEARNED_SEED, NUM_LEARNED, Pools, hashes

RECENT_EVENTS = 10_000
"""Number of newest events from which destinations are drawn: enough to estimate popularity, few
enough to read them for every window."""
RECENT_SEED = 2
"""Differs from the seed of uniform negatives: equal hashes would correlate the two draws."""
MILLION = 1_000_000
"""Shares are exact to a millionth of one negative."""
NUMBER_SEED = 3
"""Seed of the hash that decides the number of an event's recent negatives."""


@dataclass(frozen=True, slots=True)
class RecentDestinations:
    """Destinations of the newest events up to a window's end; the window's pools have all of them.

    dst_R: int64[R] node ids, one for each event. share: of an event's NUM_LEARNED negatives that
    are drawn from these, 0 to 1.
    """

    dst_R: Int64
    share: float

    @classmethod
    def until(cls, log: LogReader, end_edge: int, share: float) -> "RecentDestinations":
        """Read the destinations of the RECENT_EVENTS events before `end_edge`, without deleted
        ones. share: as in the class."""
        # Uniform negatives need no events.
        if not share:
            return cls(np.zeros(0, np.int64), 0.0)
        first = max(log.first_edge, end_edge - RECENT_EVENTS)
        src_R, dst_R, _ = log.edges(first, end_edge)
        return cls(dst_R[~log.deletions.hides(first, src_R, dst_R)], share)

    def num_drawn(self, event_E: Int64) -> Int64:
        """Number of recent ones among the NUM_LEARNED negatives of each event: int64[E].

        It is share * NUM_LEARNED, rounded up or down by a hash of the event, so that the share is
        exact on average. event_E: int64 event ids.
        """
        # Compute with integers of millionths, since products of floats are rounded.
        in_millionths = round(self.share * NUM_LEARNED * MILLION)
        whole, rest = divmod(in_millionths, MILLION)
        drawn = hashes(event_E, 1, NUMBER_SEED)[:, 0] % np.uint64(MILLION)
        number_E: Int64 = whole + (drawn < np.uint64(rest)).astype(np.int64)
        return number_E


def draw_for_learning(
    pools: Pools, recent: RecentDestinations, event_E: Int64, dst_E: Int64
) -> tuple[Int64, Float32]:
    """Draw the negatives of events for training: the first `recent.num_drawn` of each event from
    the recent destinations of the same node set, the others uniformly from all destinations known
    at the window's end.

    A uniform negative is used instead of a recent one that is the true destination, or if the node
    set has no recent destination. An event with at most NUM_LEARNED other destinations gets each of
    them once, as from `Pool.draw`. event_E: int64 event ids. dst_E: int64 true destinations.

    Returns: the negatives, int64[E, 10]; and the log of each candidate's draw frequency relative to
    uniform draws, the true destination first: float32[E, 11], 0 if all are uniform. The frequency
    of the true destination is that of its draws as a negative of other events.
    """
    # Draw uniform negatives.
    sizes_E = pools.sizes(dst_E)
    negatives = pools.draw(event_E, dst_E, sizes_E, NUM_LEARNED, LEARNED_SEED)
    log_draws = np.zeros((len(dst_E), 1 + NUM_LEARNED), np.float32)
    if not recent.share:
        return negatives, log_draws

    # Replace the first columns by recent ones, node set by node set.
    num_others_E = pools.num_others(dst_E, sizes_E)
    set_E, set_R = pools.node_sets_of(dst_E), pools.node_sets_of(recent.dst_R)
    for number in np.unique(set_E):
        rows = np.flatnonzero((set_E == number) & (num_others_E > NUM_LEARNED))
        dst_R = recent.dst_R[set_R == number]
        if not len(rows) or not len(dst_R):
            continue

        # Keep the uniform negative if the recent one is the true destination.
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
    """Log of the draw frequency relative to uniform draws: float64[E, 11], the true destination
    first.

    num_others_E: number of destinations that uniform negatives are drawn from. num_drawn_E: number
    of recent ones among the negatives. Both are int64[E].
    """
    # The share of each candidate among the recent destinations.
    node_N, count_N = np.unique(dst_R, return_counts=True)
    at = np.minimum(np.searchsorted(node_N, candidate_EC), len(node_N) - 1)
    recent_EC = np.where(node_N[at] == candidate_EC, count_N[at], 0) / len(dst_R)

    # A recent draw of the true destination is replaced by a uniform one.
    draws_EC = recent_EC * num_others_E[:, None]
    draws_EC[:, 1:] += recent_EC[:, :1]
    share_E1 = num_drawn_E[:, None] / NUM_LEARNED
    out: NDArray[np.float64] = np.log(share_E1 * draws_EC + (1 - share_E1))
    return out
