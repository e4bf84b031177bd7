"""Shapley shares are those of the definition, and have the properties that make them the only fair ones."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.models.shapley import coalitions, shapley_shares

quick = settings(max_examples=40, deadline=None)
values = st.integers(0, 6).flatmap(
    lambda n: st.lists(st.floats(-1e3, 1e3), min_size=2**n, max_size=2**n)).map(np.array)


def by_definition(value_S):
    """What each player adds when it joins, over all orders of joining."""
    n = len(value_S).bit_length() - 1
    shares = np.zeros(n)
    orders = list(permutations(range(n)))
    for order in orders:
        so_far = 0
        for player in order:
            shares[player] += (value_S[so_far | 1 << player] - value_S[so_far]) / len(orders)
            so_far |= 1 << player
    return shares


@quick
@given(values.filter(lambda v: len(v) <= 32))
def test_shares_are_the_mean_of_what_players_add_over_all_orders(value_S):
    np.testing.assert_allclose(shapley_shares(value_S), by_definition(value_S), atol=1e-9)


@quick
@given(values)
def test_shares_add_up(value_S):
    assert shapley_shares(value_S).sum() == pytest.approx(value_S[-1] - value_S[0], abs=1e-9)


@quick
@given(values.filter(lambda v: len(v) > 1), st.floats(-10, 10))
def test_a_player_that_adds_the_same_to_all_has_that_as_its_share(value_S, gain):
    n = len(value_S).bit_length()
    both = np.concatenate([value_S, value_S + gain])
    shares = shapley_shares(both)
    assert len(shares) == n and shares[-1] == pytest.approx(gain, abs=1e-9)
    np.testing.assert_allclose(shares[:-1], shapley_shares(value_S), atol=1e-9)


@quick
@given(st.lists(st.floats(-10, 10), min_size=6, max_size=6), st.lists(st.floats(-1, 1), min_size=16, max_size=16))
def test_two_players_who_are_worth_the_same_to_all_share_the_same(pair, others):
    # The value depends on how many of players 0 and 1 are in, and on the other four in any way.
    has = coalitions(6)
    value_S = np.array([pair[int(s[:2].sum())] + others[int((s[2:] * 2 ** np.arange(4)).sum())] * s[:2].sum() for s in has])
    shares = shapley_shares(value_S)
    assert shares[0] == pytest.approx(shares[1], abs=1e-9)


def test_more_players_than_can_be_asked_about_are_refused():
    with pytest.raises(AssertionError):
        coalitions(10)
