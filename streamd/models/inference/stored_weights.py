"""Weights as releases stored them, which knew fewer facts: what torch and numpy fill up alike."""

from collections.abc import Sequence

from streamd.graph.blocks.hops import arrays_of
from streamd.graph.facts.columns import NUM_FACTS
from streamd.models.device_arrays import Array

OLD_NUM_FACTS = (19, 32)
"""Numbers of facts that older releases knew, the first of those there are now."""
HISTORY_WEIGHT = "label_head.history.0"
"""A weight that older releases did not have. An older label head knew no history: it weighs
nothing."""


def with_all_facts(array: Array, shape: Sequence[int], name: str = "") -> Array:
    """Fill an array or tensor over the facts up to a shape with more of them, which are its last
    columns.

    New facts weigh nothing, and count as standardised until they are observed: a variance is 1, all
    else 0. One of any other shape is returned as it is.
    """
    missing = shape[-1] - array.shape[-1] if shape and array.shape else 0
    if NUM_FACTS - missing not in OLD_NUM_FACTS or array.shape[:-1] != tuple(shape[:-1]):
        return array
    arrays = arrays_of(array)
    column = arrays.zeros_like(array[..., :1]) + (1 if name.endswith(".var") else 0)
    return arrays.concatenate([array] + [column] * missing, -1)
