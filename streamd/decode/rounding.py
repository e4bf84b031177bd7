"""Counts whole numbers that the log rounds: it stores features as float32, which has 24 bits for
them.

Fractions are rounded too, but their last digits seldom matter. A whole number may be a key, a time
or a counter, in which every digit matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools

EXACT = 2**24
"""float32 represents every whole number up to this one."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """The number of rounded values. example: the first one, with its feature; "" for none."""

    num: int = 0
    example: str = ""

    def __add__(self, other: "Rounded") -> "Rounded":
        return Rounded(self.num + other.num, self.example or other.example)

    @property
    def words(self) -> str:
        """The count as a sentence, "" if nothing was rounded."""
        if not self.num:
            return ""
        return (
            f"{self.num:,} {'value' if self.num == 1 else 'values'} of features rounded: float32 "
            f"does not hold all whole numbers above {EXACT:,}, such as {self.example}"
        )


NOTHING = Rounded()


def count_rounded(values: NDArray[Any], names: Sequence[str]) -> Rounded:
    """Count the whole numbers that float32 cannot represent.

    values: finite, [n, D]. names: of the D columns. Integers are compared exactly; values of
    float64 as they are, although they may have been rounded before.
    """
    is_small = values.dtype.kind == "f" and np.abs(values).max(initial=0) <= EXACT
    if is_small or not values.size:
        return NOTHING
    places = np.argwhere(_is_rounded(values))
    if not len(places):
        return NOTHING
    row, column = map(int, places[0])
    value = values[row, column]
    return Rounded(len(places), f"{names[column]} {int(value)} as {int(np.float32(value))}")


def _is_rounded(values: NDArray[Any]) -> Bools:
    is_rounded: Bools
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            is_rounded = (values.astype(np.float32) != values) & (values == np.rint(values))
    else:
        # The smallest int64 has no negative as int64; its bits, read as uint64, are its magnitude.
        signed = values if values.dtype.kind == "u" else np.abs(values.astype(np.int64))
        size = signed.astype(np.uint64)
        lowest_bit = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
        is_rounded = size // lowest_bit >= EXACT
    return is_rounded
