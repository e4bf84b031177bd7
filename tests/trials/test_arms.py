"""The arm of a unit is a function of the trial's name, the unit and the shares, and of nothing else."""

import ast
import hashlib
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.trials.arms import Arms

SHARES = {"rule": 0.25, "champion": 0.6, "popularity": 0.15}


def plain_arm_of(trial, unit, shares):
    """The reference: the hash as a fraction in [0, 1), against the sums of shares in the order of names."""
    place = Fraction(int.from_bytes(hashlib.blake2b(f"{trial}\0{unit}".encode(), digest_size=8).digest()), 2**64)
    end = Fraction(0)
    for arm in sorted(shares):
        end += Fraction(shares[arm])
        if place < end:
            return arm
    return max(shares)


@given(st.text(), st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_the_arm_is_that_of_the_plain_reference(unit, weights):
    shares = {f"arm-{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    assert Arms("ranking", shares).arm_of(unit) == plain_arm_of("ranking", unit, shares)


def test_the_shares_are_exact_over_many_units():
    """Each number is within 4 standard deviations, which a fair hash leaves once in 5,000 samples."""
    number = 200_000
    arms = Arms("ranking", SHARES)
    found = [arms.arm_of(f"user:{i}") for i in range(number)]
    for arm, share in SHARES.items():
        assert abs(found.count(arm) - number * share) < 4 * (number * share * (1 - share)) ** 0.5


def test_another_process_and_another_order_of_arms_give_the_same_arms():
    units = [f"user:{i}" for i in range(50)] + ["", "ü", "a\0b"]
    here = [Arms("ranking", SHARES).arm_of(unit) for unit in units]
    assert here == [Arms("ranking", dict(reversed(SHARES.items()))).arm_of(unit) for unit in units]
    code = f"from streamd.trials.arms import Arms; a = Arms('ranking', {SHARES}); print([a.arm_of(u) for u in {units}])"
    assert ast.literal_eval(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) == here


def test_the_arms_of_some_units_never_change():
    """A release that assigned them otherwise would move units of a running trial."""
    arms = Arms("ranking", SHARES)
    assert [arms.arm_of(f"user:{i}") for i in range(8)] == [
        "rule", "rule", "champion", "champion", "champion", "popularity", "champion", "rule"]


@pytest.mark.parametrize("other", ["ranking-2", "rankin"])
def test_units_are_assigned_independently_in_another_trial(other):
    number = 20_000
    arms, others = Arms("ranking", {"a": 0.5, "b": 0.5}), Arms(other, {"a": 0.5, "b": 0.5})
    same = sum(arms.arm_of(str(i)) == others.arm_of(str(i)) for i in range(number))
    assert abs(same - number / 2) < 4 * (number / 4) ** 0.5
