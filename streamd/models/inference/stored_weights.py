"""The padding of weights of releases with fewer facts, for torch and numpy alike."""

from collections.abc import Sequence

from streamd.graph.blocks.hops import arrays_of
from streamd.graph.facts.columns import NUM_FACTS
from streamd.models.device_arrays import Array

OLD_NUM_FACTS = (19, 32, 35)
"""Numbers of facts in older releases; their facts are the first of today's."""
HISTORY_WEIGHT = "label_head.history.0"
"""A weight that versions of older releases lack. Their label heads used no history, so it is 0."""

MATCH = "feature_match."
"""Prefix of weights that versions of older releases lack. Without them features add nothing."""
NEW_SCORE = "new_score."
"""Prefix of weights that versions of older releases lack. Without them, new destinations rank by
their rate alone."""


def with_all_facts(array: Array, shape: Sequence[int], num_edge_sets: int, name: str = "") -> Array:
    """Pad a weight to a shape with more facts. Facts are its last axis, in the layout of
    `streamd.graph.facts.columns.num_facts`.

    New facts have weight 0, and mean 0 and variance 1 until they are observed. A weight of any
    other shape is returned unchanged. name: of the weight.
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

    # In each row, the new facts come after its old ones.
    end = array.shape[-1] - num_after
    first = end - known if num_rows == 2 else end
    parts = [array[..., :first], *new]
    if num_rows == 2:
        parts += [array[..., first:end], *new, array[..., end:]]
    return arrays.concatenate(parts, -1)
