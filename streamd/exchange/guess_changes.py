"""Detects the records that delete rows in a change stream without an envelope."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from streamd.exchange.field_names import last_words
from streamd.exchange.field_values import MAX_NAME, Fields, Seen, doubt_of_truncates
from streamd.settings.sources import steps_of

OPERATIONS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("c", "r", "u"), ("d",), ("m",)),
    (("i", "u"), ("d",), ("b", "c", "m")),
    (("+i", "+u"), ("-d",), ("-u",)),
    (("i", "+u"), ("d",), ("-u",)),
    (
        ("insert", "update", "replace", "upsert"),
        ("delete", "remove"),
        ("begin", "commit", "rename", "invalidate"),
    ),
    (
        ("insert", "update", "bootstrap-insert"),
        ("delete",),
        ("bootstrap-start", "bootstrap-complete", "table-create", "table-alter", "table-drop"),
    ),
    (("insert", "update"), ("delete",), ("create", "alter", "query", "message", "heartbeat")),
    (("insert", "update", "load"), ("delete",), ("create-table", "add-column", "rename-table")),
    (("insert", "update_postimage"), ("delete", "update_preimage"), ()),
    (("insert", "modify"), ("remove",), ()),
    (("create", "update", "undelete"), ("delete", "gap_delete"), ()),
    (("create", "update", "modify"), ("delete",), ()),
    (("created", "updated", "modified"), ("deleted", "removed"), ()),
)
"""Families of values of an operation: those of changes that leave a row, those that delete one, and
those that concern no row."""
UPDATES = frozenset(
    ("u", "+u", "update", "replace", "upsert", "update_postimage", "modify", "updated", "modified")
)
"""Words for a change of an existing row."""
TRUNCATES = ("t", "truncate", "truncate-table", "truncated", "drop", "drop-table", "dropdatabase")
"""Words for a change that deletes all rows; every family may contain them."""
MARK_WORDS = frozenset(
    ("op", "oper", "operation", "type", "action", "event", "change", "name", "kind")
)
"""Words in the names of fields that contain an operation."""
MARKED = frozenset(("deleted", "tombstone"))
"""Words in the names of fields that are true for deletes, or contain the time of one."""
NEIGHBORS = {"database", "table", "ns", "after", "pos"}
"""Names of fields that change streams have next to an operation."""
OF_CHANGE = frozenset(("op", "commit", "change", "event", "current", "source", "wall", "db"))
"""Words in the names of times at which a row was changed; such a time is not a column of the
row."""
TRUTHS: dict[Any, Any] = {"true": "false", "t": "f", "y": "n", "yes": "no", "1": "0"}


@dataclass(frozen=True, slots=True)
class DeleteMark:
    """The field that marks deletes.

    kept: its values for rows. deleted: its values for deletes; empty if no condition can name them.
    truncates: its values for truncated tables among the records.
    """

    path: str
    kept: tuple[Any, ...]
    deleted: tuple[Any, ...]
    truncates: tuple[str, ...] = ()


def find_delete_mark(fields: Fields) -> DeleteMark | None:
    """Find the field that marks the records that delete a row; None if there is none."""
    for path, at in fields.scalars.items():
        words = last_words(path)
        # The mark is a boolean or a time of the deletion, or the name of the operation.
        if not MARKED.isdisjoint(words) or words[-2:] in (("is", "delete"), ("delete", "flag")):
            # A condition cannot list times, so `deleted` stays empty.
            if words[-1:] == ("at",) or at.types.keys() == {"int"} and len(at.values) > 2:
                return DeleteMark(path, (None,), ())
            # A row without the mark is not deleted.
            absent = _absent_values(path, fields)
            if mark := _truth_mark(path, at):
                return replace(mark, kept=(*mark.kept, *absent))
            if absent and len(at.values) == 1:
                return DeleteMark(path, absent, tuple(at.values))
        # SQL Server: 1 deletes, 2 inserts, 4 is a row after an update.
        elif path.startswith("__$operation") and at.types.keys() == {"int"}:
            return DeleteMark(path, (2, 4), (1,))
        elif (words and words[-1] in MARK_WORDS) and (mark := _operation_mark(path, at, fields)):
            return mark
    return None


def _truth_mark(path: str, at: Seen) -> DeleteMark | None:
    """The mark of a field that is true for deletes: boolean, 0 and 1, or two words; else None."""
    values = list(at.values)
    if at.types.keys() == {"bool"}:
        return DeleteMark(path, (False,), (True,))
    if at.types.keys() == {"int"} and {*values} <= {0, 1}:
        return DeleteMark(path, (0,), (1,))
    for true, false in TRUTHS.items():
        if at.types.keys() == {"str"} and {v.lower() for v in values} <= {true, false}:
            upper = any(v.isupper() for v in values)
            return DeleteMark(
                path, (false.upper() if upper else false,), (true.upper() if upper else true,)
            )
    return None


def _operation_mark(path: str, at: Seen, fields: Fields) -> DeleteMark | None:
    """The mark of a field that names the operation, else None.

    The creation of a row is a mark only next to a change stream's other fields, or if the values
    include deletes.
    """
    if at.types.keys() != {"str"} or any(len(v) > MAX_NAME for v in at.values):
        return None
    values = {v.lower() for v in at.values}
    # Of the families that contain all values, take the one in which most of them change rows.
    families = [
        (len(values & {*kept, *deleted}), kept, deleted)
        for kept, deleted, others in OPERATIONS
        if values <= {*kept, *deleted, *others, *TRUNCATES}
    ]
    most, kept, deleted = max(families, key=lambda family: family[0], default=(0, (), ()))
    # A creation alone is no mark: it needs deletes, or other fields of a change stream.
    names = {step.lower() for other in fields.scalars for step in steps_of(other)[:1]}
    words = last_words(path)
    is_stream = path.startswith("_") or words[0] in ("op", "operation") or "change" in words
    if not most or not (values & {*deleted, *TRUNCATES} or is_stream or names & NEIGHBORS):
        return None
    # Of the family's words for a deletion, take those in the records, or else the first.
    came = _in_words(deleted, at.values)
    return DeleteMark(
        path,
        tuple(dict.fromkeys((*_in_case_of(kept, at.values), *_in_words(kept, at.values)))),
        came or _in_case_of(deleted[:1], at.values),
        _in_words(TRUNCATES, at.values),
    )


def _absent_values(path: str, fields: Fields) -> tuple[Any, ...]:
    """The values that mean no mark, if rows lack the field: null, and "" if a row has it."""
    if not fields.missing(path):
        return ()
    return (None, "") if any(_value(row, path) == "" for row in fields.rows) else (None,)


def _in_words(words: tuple[str, ...], came: Counter[Any]) -> tuple[str, ...]:
    """The values that are among some words, in any case."""
    return tuple(sorted(value for value in came if value.lower() in words))


def _in_case_of(words: tuple[str, ...], came: Counter[Any]) -> tuple[str, ...]:
    """Convert words to the case of the values in the records."""
    for change in (str.upper, str.capitalize):
        if all(value == change(value) for value in came):
            return tuple(map(change, words))
    return words


def delete_rule(
    mark: DeleteMark, mapped: dict[str, Any], fields: Fields, doubts: list[str]
) -> dict[str, Any] | None:
    """Make the rule of deletes for a mark; None, with a doubt, if no such rule can work.

    mapped: the fields of edges.
    """
    if mark.truncates:
        doubts.append(doubt_of_truncates(mark.path, mark.truncates[0]))
    if not mark.deleted:
        doubts.append(
            f"{mark.path} marks deletes by a time, which no condition can name: only rows without "
            "it become edges, and the edges of deleted rows stay"
        )
        return None
    of_edge: dict[str, str] = {
        name: mapped[name] for name in ("src", "dst", "time") if name in mapped
    }
    rows = [row for row in fields.rows if _value(row, mark.path) in mark.deleted]
    # The row is in `before`, if there is one.
    before: dict[str, str] = {name: _before(path) for name, path in of_edge.items()}
    if before != of_edge and (not rows or all(_has(row, before) for row in rows)):
        of_edge = before
    # Propose a rule only if these records show that it works, or the tool always sends whole rows.
    words = f"{mark.path} marks deletes ({', '.join(map(str, mark.deleted))})"
    if not rows and not mark.path.startswith("_"):
        doubts.append(
            f"{words}, and none is among these records: only other rows become edges, and the "
            "edges of deleted rows stay without `deletes`"
        )
        return None
    if len(of_edge) < 3 or not all(_has(row, of_edge) for row in rows):
        doubts.append(
            f"{words}: those records do not hold the row's fields, so the edges of deleted rows "
            "stay"
        )
        return None
    if not _is_time_of_row(of_edge["time"], of_edge["src"]):
        doubts.append(
            f"{words}: {of_edge['time']} is the time of the change, not of the row, so a delete "
            "cannot name the edge of its row, which stays"
        )
        return None
    updates = [value for value in mark.kept if str(value).lower() in UPDATES]
    first = f"; for first states only, leave {', '.join(updates)} out of `where`" if updates else ""
    doubts.append(
        f"{words}: they delete the edge of the same fields, so deletes must hold whole rows; each "
        f"update of a row makes one more edge, and a late one gets the newest time{first}"
    )
    return {"where": {mark.path: list(mark.deleted)}, "fields": of_edge}


def _is_time_of_row(time: str, src: str) -> bool:
    """Whether a time is a column of the row that contains the source: a delete then has the same
    time."""
    inside = [tuple(s for s in steps_of(path) if s[0] != "$")[:-1] for path in (time, src)]
    return inside[0] == inside[1] and OF_CHANGE.isdisjoint(last_words(time))


def _before(path: str) -> str:
    return f"before{path[5:]}" if path.startswith("after.") else path


def _has(row: dict[str, Any], paths: dict[str, str]) -> bool:
    return all(_value(row, path) is not None for path in paths.values())


def _value(row: Any, path: str) -> Any:
    for step in steps_of(path):
        if type(row) is list and step.isdecimal() and int(step) < len(row):
            row = row[int(step)]
        elif type(row) is dict:
            row = row.get(step)
        else:
            return None
    return row
