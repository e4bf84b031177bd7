"""Exact Shapley values of a small game: each player's share of the value that all reach together
(Shapley 1953, "A value for n-person games")."""

from math import factorial

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools

Float64 = NDArray[np.float64]

MAX_PLAYERS = 9
"""At most 2**9 = 512 coalitions, whose values the caller must compute."""


def coalitions(num_players: int) -> Bools:
    """All coalitions, bool[2**n, n]: coalition s contains the players whose bit is set in s."""
    assert num_players <= MAX_PLAYERS, "each player doubles the number of coalitions"
    bits: Bools = (np.arange(2**num_players)[:, None] >> np.arange(num_players)) & 1 == 1
    return bits


def shapley_shares(value_S: Float64) -> Float64:
    """The share of each player, float64[n]; they add up to the value of the full coalition minus
    that of the empty one.

    value_S: float64[2**n], the value of each coalition, in the order of `coalitions`.
    """
    num_players = len(value_S).bit_length() - 1
    has_SN = coalitions(num_players)
    size_S = has_SN.sum(1)

    # A coalition's weight is the share of joining orders in which exactly its members precede the
    # player.
    orders = [
        factorial(size) * factorial(num_players - size - 1) / factorial(num_players)
        for size in range(num_players)
    ]
    shares = np.zeros(num_players)
    for player in range(num_players):
        without = np.flatnonzero(~has_SN[:, player])
        gain = value_S[without + (1 << player)] - value_S[without]
        shares[player] = (np.array(orders)[size_S[without]] * gain).sum()
    return shares
