"""Finds paths of a topic's sources at which no record of a sample has a value, or none of the type
that a condition names."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from json import dumps
from typing import Any

from streamd.decode.sources.paths import Steps, follow, open_text
from streamd.decode.sources.rules import meets
from streamd.exchange.field_values import fields_of_rows, objects_of, unwrapped
from streamd.settings.sets import nearest_of, text_of
from streamd.settings.sources import Scalar, SourceSettings, fields_of, is_outside, steps_of


def absent_paths(sources: Sequence[SourceSettings], records: Sequence[Any]) -> list[str]:
    """Find the paths of a topic's sources at which no record has a value. Returns: a sentence for
    each.

    A field that is there, but null or empty in all records, has a sentence in a condition only:
    elsewhere `default` and `missing` apply, or the record is refused. It also reports a condition
    on a value that the records have only with another type, such as the text "1" for the number 1.
    A rule's fields are searched in the records that meet its conditions, and that no source before
    it takes. Paths into the envelope, the record's key and its headers are not checked; records
    that are not JSON are skipped.
    """
    _, rows = unwrapped(objects_of(records, [])[0], records, [])
    seen = fields_of_rows(rows).scalars
    sentences: dict[str, None] = {}
    # Each source reads the rows that no source before it takes, as in ingest.
    left = rows
    for source in sources:
        among = rows if source.also else left
        taken: set[int] = set()
        for rule in source.rules:
            if rule.fields is None:
                continue
            met = [row for row in among if meets(rule.where, partial(_read, source, row))]
            taken |= {id(row) for row in met}
            # A condition may test for null, which an absent field satisfies.
            of_rule = [[path] for path, values in rule.where.items() if None not in values]
            _find(source, of_rule, among, seen, sentences, conditions=True)
            for path, values in rule.where.items():
                found = [value for row in among for value in _read(source, row, path)]
                sentences |= dict.fromkeys(_of_other_types(path, values, found))
            _find(source, (f.path for _, f in fields_of(rule.fields)), met, seen, sentences)
        left = [row for row in left if id(row) not in taken]
    return list(sentences)


def _find(
    source: SourceSettings,
    fields: Iterable[Sequence[str]],
    rows: Sequence[Any],
    seen: Collection[str],
    sentences: dict[str, None],
    conditions: bool = False,
) -> None:
    """Add a sentence for each field that has no value in any row. fields: the paths of each;
    conditions: of conditions, which may not be empty in all rows."""
    for paths in fields:
        # Keys, headers and envelopes are not part of the rows.
        if not rows or not paths or any(is_outside(steps_of(path)) for path in paths):
            continue
        values = (v for path in paths for row in rows for v in _read(source, row, path))
        if any(value is not None for value in values):
            continue
        if not any(_is_there(source, row, path) for path in paths for row in rows):
            near = nearest_of(paths[0], seen)
            sentences[f"No record has a value at {' or '.join(paths)}{near}."] = None
        elif conditions:
            sentences[f"{paths[0]} is null or empty in all records."] = None


def _of_other_types(path: str, values: Iterable[Scalar], found: Sequence[Any]) -> Iterable[str]:
    """Yield a sentence for each value of a condition that the records have only with another type.

    found: the values of the records at the condition's path.
    """
    scalars = [one for one in found if isinstance(one, str | int)]
    for value in values:
        if value is None or meets({path: (value,)}, lambda _: found):
            continue
        for one in scalars:
            text = text_of(value) if isinstance(value, str | int) else str(value)
            if one == value or text_of(one) == text:
                yield (
                    f"No record has {dumps(value)} at {path}, but {dumps(one)}, which has "
                    "another type: correct it in `where`."
                )
                break


def _is_there(source: SourceSettings, row: Any, path: str) -> bool:
    """Whether a record has a field at a path, which may be null."""
    steps = steps_of(path)
    above, name = steps[:-1], steps[-1]
    holders = map(open_text, _read_steps(source, row, above))
    return any(type(holder) is dict and name in holder for holder in holders)


def _read(source: SourceSettings, row: Any, path: str) -> list[Any]:
    """The values of a record at a path: one for each element of the source's list if the path leads
    into it, else one."""
    return _read_steps(source, row, steps_of(path))


def _read_steps(source: SourceSettings, row: Any, steps: Steps) -> list[Any]:
    """As `_read`, by the steps of a path."""
    of_list = () if source.each is None else steps_of(source.each)
    num = len(of_list)
    if not num or steps[:num] != of_list:
        return [follow(steps)(row)]
    # A path into the list is read in each of its elements.
    elements = open_text(follow(of_list)(row))
    return list(map(follow(steps[num:]), elements)) if type(elements) is list else []
