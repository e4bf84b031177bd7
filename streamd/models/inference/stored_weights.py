"""Weights as releases stored them, which knew fewer facts: what torch and numpy fill up alike."""

from collections.abc import Sequence

from streamd.graph.blocks.hops import arrays_of
from streamd.graph.facts.columns import NUM_FACTS
from streamd.models.device_arrays import Array

OLD_NUM_FACTS = (19, 32, 35)
"""Numbers of facts that older releases knew, the first of those there are now."""
HISTORY_WEIGHT = "label_head.history.0"
"""A weight that older releases did not have. An older label head knew no history: it weighs
nothing."""


def with_all_facts(array: Array, shape: Sequence[int], num_edge_sets: int, name: str = "") -> Array:
    """Fill an array or tensor over a row of facts up to a shape with more of them. The row is its
    last columns; of several edge sets it is as `streamd.graph.facts.columns.num_facts` has it.

    New facts weigh nothing, and count as standardised until they are observed: a variance is 1, all
    else 0. One of any other shape is returned as it is.
    """
    num_rows, num_after = (2, num_edge_sets) if num_edge_sets > 1 else (1, 0)
    missing = shape[-1] - array.shape[-1] if shape and array.shape else 0
    known = NUM_FACTS - missing // num_rows
    if (
        missing % num_rows
        or known not in OLD_NUM_FACTS
        or array.shape[:-1] != tuple(shape[:-1])
        or array.shape[-1] < num_rows * known + num_after
    ):
        return array
    arrays = arrays_of(array)
    column = arrays.zeros_like(array[..., :1]) + (1 if name.endswith(".var") else 0)
    new = [column] * (NUM_FACTS - known)

    # The new facts of each row follow its old ones.
    end = array.shape[-1] - num_after
    first = end - known if num_rows == 2 else end
    parts = [array[..., :first], *new]
    if num_rows == 2:
        parts += [array[..., first:end], *new, array[..., end:]]
    return arrays.concatenate(parts, -1)
