"""Finds numbers that records hold as something else: as bytes, or as text with a decimal comma."""

from collections.abc import Sequence

from streamd.decode.encoded_decimals import WAY_OUT, doubt_of_decimals
from streamd.exchange.decimal_commas import COMMA
from streamd.exchange.field_values import Fields, Seen


def doubts_of_decimals(fields: Fields, paths: Sequence[str]) -> list[str]:
    """Sentences on keys that are decimals as bytes: as text, or in an object with their scale."""
    doubts = []
    for path in paths:
        inside = path.removesuffix(".value")
        if inside != path and f"{inside}.scale" in fields.scalars:
            doubts.append(f"{inside} is a decimal as an object of scale and value: {WAY_OUT}")
        elif path in fields.scalars:
            doubts.append(doubt_of_decimals(path, fields.scalars[path].values) or "")
    return list(filter(None, doubts))


def doubts_of_commas(fields: Fields) -> list[str]:
    """Sentences on the fields of text that has numbers with a decimal comma."""
    return [
        f"{path} looks like numbers with a decimal comma, such as {min(at.values)}: write them "
        "with a point, since text is no number"
        for path, at in fields.scalars.items()
        if has_commas(at)
    ]


def has_commas(at: Seen) -> bool:
    """Whether all values of a field are numbers with a decimal comma."""
    # An empty cell has no value.
    values = [one for one in at.values if one != ""]
    return bool(values) and all(type(one) is str and COMMA.fullmatch(one) for one in values)
