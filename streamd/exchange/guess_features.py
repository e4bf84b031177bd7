"""Guesses the features of edges, and names the fields that it leaves out."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from streamd.decode.sources.paths import follow
from streamd.exchange.chosen_fields import inside
from streamd.exchange.field_names import is_technical, last_words
from streamd.exchange.field_values import MAX_NAME, Fields, Seen, fields_of_rows
from streamd.exchange.guess_numbers import has_commas
from streamd.settings.sources import steps_of

MAX_FEATURES = 8
MAX_CATEGORIES = 12
HASH_WIDTH = 16
"""Maximum features and categories of a guess; width of the hash for text of unknown categories."""
MAX_ELEMENTS = 100
"""Maximum elements of a list that are looked at."""
MAX_NAMED = 8
"""Maximum fields that a doubt names for one reason."""
CODES = frozenset(
    ("id", "ids", "uuid", "guid", "key", "port", "p", "zip", "version", "offset")
    + ("xid", "lsn", "scn", "seq", "sequence", "gtid")
)
"""Last words in the names of numbers that measure nothing."""
RARE = "in fewer than half of the records"
IN_LIST = "in a list of which only the first element is read"
CODE = "an id or a code by its name"
ONE_VALUE = "the same value in all of these records"
UNEVEN = "lists of unequal length"
MIXED = "values of several types"
FREE_TEXT = "text that seldom repeats: declare text or hash"
COMMAS = "numbers with a decimal comma"
SURPLUS = f"only the first {MAX_FEATURES} are guessed"
SAME_NAME = "the same name as another feature"


def find_features(
    fields: Fields,
    taken: frozenset[str],
    chosen: Sequence[str] | None,
    each: str,
    doubts: list[str],
) -> dict[str, tuple[str, Any]]:
    """Choose features. Adds a doubt that names the fields that it leaves out.

    Args: taken: paths with another meaning; chosen: paths of the features, None to guess them;
    each: the list of edges, "" for none.
    Returns: path and declaration by name.
    """
    elements = _elements_of(fields, each) if each else fields
    features: dict[str, tuple[str, Any]] = {}
    left: dict[str, list[str]] = {}
    for path in fields.scalars if chosen is None else chosen:
        # The fields of edges in a list have values in all of its elements.
        of_edge = elements if inside(path, each) != path else fields
        at = of_edge.scalars.get(path, fields.scalars[path])
        kind, reason = _kind_of(at)
        if chosen is None:
            if path in taken or is_technical(path):
                continue
            reason = _obstacle(path, at, of_edge, each) or reason
            if not reason and len(features) == MAX_FEATURES:
                reason = SURPLUS
        elif kind is None:
            kind, reason = _kind_of_few(at), ""
        name = re.sub(r"[^A-Za-z0-9]+", "_", inside(path, each)).strip("_") or "feature"
        if not reason and name in features:
            reason = SAME_NAME
        if reason:
            left.setdefault(reason, []).append(inside(path, each))
            continue
        whole = at.count == of_edge.count
        features[name] = (path, kind if whole else kind | {"missing": missing_value(kind)})
    if left:
        doubts.append("left out of features: " + "; ".join(_words(*one) for one in left.items()))
    return features


def _words(reason: str, paths: list[str]) -> str:
    more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
    return f"{', '.join(paths[:MAX_NAMED])}{more} ({reason})"


def _elements_of(fields: Fields, each: str) -> Fields:
    """The fields of a list's elements, by the paths of the first one; each element is a row."""
    value = follow(steps_of(each))
    lists: Iterable[Any] = (value(row) for row in fields.rows)
    elements = [one for some in lists if type(some) is list for one in some[:MAX_ELEMENTS]]
    of_each = fields_of_rows([{"0": one} for one in elements])
    of_each.scalars = {f"{each}.{path}": at for path, at in of_each.scalars.items()}
    return of_each


def missing_value(kind: dict[str, Any]) -> Any:
    """The value of a feature that a record lacks. kind: its declaration."""
    if "vector" in kind:
        return [0] * kind["vector"]
    return {"number": 0, "bool": False}.get(str(kind.get("type")), "")


def _obstacle(path: str, at: Seen, fields: Fields, each: str) -> str:
    """The reason why a field may not be guessed to be a feature, "" for none. at: its values in
    `fields`; each: the list of edges, "" for none."""
    # Only the first element of a list was read, so it is evidence for no other one.
    found = fields.list_of(path)
    if found is not None and found[0] != each:
        return IN_LIST
    if 2 * at.count < fields.count:
        return RARE
    return CODE if last_words(path)[-1:] and last_words(path)[-1] in CODES else ""


def _kind_of(at: Seen) -> tuple[Any, str]:
    """The declaration of a feature with the values at a path, None if they suit no kind, and then
    the reason."""
    kinds = at.types.keys()
    if kinds == {"list"}:
        widths = {len(v) for v in at.values}
        return ({"vector": widths.pop()}, "") if len(widths) == 1 else (None, UNEVEN)
    if len(at.values) == 1:
        return None, ONE_VALUE
    if kinds == {"bool"}:
        return {"type": "bool"}, ""
    # In CSV numbers are text; codes such as 007 are not numbers.
    if at.is_number:
        return {"type": "number"}, ""
    if kinds != {"str"}:
        return None, MIXED
    if has_commas(at):
        return None, COMMAS
    # Text is a category if a few values repeat often.
    texts = sorted(v for v in at.values if isinstance(v, str) and len(v) <= MAX_NAME)
    if len(at.values) <= MAX_CATEGORIES and 5 * len(texts) <= at.count:
        return {"categories": texts}, ""
    return None, FREE_TEXT


def _kind_of_few(at: Seen) -> dict[str, Any]:
    """The declaration of a chosen feature, if its values are too few to show the kind."""
    if at.types.keys() <= {"int", "float"}:
        return {"type": "number"}
    return {"hash": HASH_WIDTH}
