"""Decodes the numbers of a log to features of tables and samples."""

import numpy as np

from streamd.errors import TFGNNError
from streamd.events import Float32
from streamd.settings.sets import FeatureSettings, other_text, text_of
from streamd.tfgnn.logs.declared import DeclaredSet, nothing_text
from streamd.tfgnn.records.row_names import Location
from streamd.tfgnn.sampling.draws import Array


def to_columns(one: DeclaredSet, values_RD: Float32, location: Location) -> dict[str, Array]:
    """The features of R rows, with the types of `declared.feature_type`.

    values_RD: the columns of the set's features in the log. Raises: TFGNNError with the first row
    whose numbers are no value of a feature.
    """
    columns: dict[str, Array] = {}
    at = 0
    for name, declared in one.features.items():
        part = values_RD[:, at : at + declared.width]
        at += declared.width
        if declared.vector is not None or declared.text is not None:
            columns[name] = np.ascontiguousarray(part)
        elif declared.type == "number":
            columns[name] = np.ascontiguousarray(part[:, 0])
        elif declared.type == "bool":
            _refuse(~np.isin(part[:, 0], (0, 1)), name, declared, part, location)
            columns[name] = part[:, 0] == 1
        else:
            columns[name] = _of_one_hot(name, declared, part, location)
    return columns


def _of_one_hot(name: str, declared: FeatureSettings, part: Float32, location: Location) -> Array:
    """Texts or bucket numbers of one-hot rows, or rows of zeros. Raises: TFGNNError."""
    # A one-hot row has a single 1; a row of zeros means an absent value.
    count_R = (part != 0).sum(1)
    index_R: Array = part.argmax(1)
    is_one = part[np.arange(len(part)), index_R] == 1
    _refuse((count_R > 1) | ((count_R == 1) & ~is_one), name, declared, part, location)
    index_R[count_R == 0] = -1
    if declared.hash is not None:
        return index_R
    known = [text_of(c) for c in declared.categories or ()]
    texts = np.empty(len(known) + 2, object)
    # The last one, at index -1, is for rows of zeros.
    texts[:] = [t.encode() for t in (*known, other_text(declared), nothing_text(declared))]
    found: Array = texts[index_R]
    return found


def _refuse(
    wrong_R: Array, name: str, declared: FeatureSettings, part: Float32, location: Location
) -> None:
    """Raise an error about the first wrong row, if there is one. Raises: TFGNNError."""
    if wrong_R.any():
        row = int(np.flatnonzero(wrong_R)[0])
        shown = ", ".join(f"{v:g}" for v in part[row, :8].tolist())
        raise TFGNNError(
            f"{location(row)}: feature {name!r} is [{shown}], which is no value of "
            f"{declared.words}.",
            "give --numbers: then all features of a set are one vector.",
        )
