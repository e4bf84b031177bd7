"""The arms of a trial, and the arm of each unit: by a hash of the trial's name and the unit, so
that a unit keeps its arm over restarts, machines and processes."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

HASH_BYTES = 8
"""Bytes of the hash: shares are exact to 2^-64."""


class Arms:
    """The arms of a trial with their shares. Immutable.

    name: of the trial. shares: arm -> share of the units, above 0; they add up to 1.
    """

    def __init__(self, name: str, shares: Mapping[str, float]) -> None:
        self.name = name
        # Sorted by name, so that the order in the settings changes nothing.
        self.shares = dict(sorted(shares.items()))
        self._names = list(self.shares)

        # Integers, so that no rounding at a lookup can move a unit.
        total = sum(self.shares.values())
        ends = accumulate(self.shares.values())
        self._ends = [int(end / total * 2 ** (8 * HASH_BYTES)) for end in ends][:-1]
        """One past the highest hash of each arm but the last."""

    def arm_of(self, unit: str) -> str:
        """The arm of a unit, for example of a user: the first one in the order of their names whose
        cumulative share is above the hash."""
        # A zero byte separates the two, since a name has none.
        text = f"{self.name}\0{unit}".encode()
        digest = hashlib.blake2b(text, digest_size=HASH_BYTES).digest()
        return self._names[bisect_right(self._ends, int.from_bytes(digest))]
