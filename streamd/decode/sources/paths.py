"""Reads chosen fields of JSON records, and nothing else of them, into columns of Python values.

A shape is made of paths. `msgspec` gets types made for them, so it passes over all other fields
without making objects of them.
"""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streamd.decode.wire import TOO_DEEP, object_lines
from streamd.errors import BadEvent

Steps = tuple[str, ...]
Columns = list[Sequence[Any]]
"""One sequence of values for each path of a shape; None where a record has no such field."""
PLACE = re.compile("[0-9]{1,9}")
"""A step that is a place in a list, where there is one."""
FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_any = msgspec.json.Decoder()


class Shape:
    """The fields at some paths of a record. Owner: a mapping; it has no state.

    A field that is absent, null, or below a scalar reads as None.
    """

    def __init__(self, paths: Sequence[Steps]) -> None:
        self._walks = [follow(path) for path in paths]
        # A path ends as a type of its own where a place in a list or another path's end begins.
        ends = {path[:i] for path in paths for i in range(1, len(path)) if PLACE.fullmatch(path[i])}
        ends |= set(paths)
        self._root = _Branch()
        for column, path in enumerate(paths):
            end = next(i for i in range(1, len(path) + 1) if path[:i] in ends)
            self._root.add(path[:end], column, path[end:])
        self._root.make()
        self._decoder = msgspec.json.Decoder(self._root.type)
        self._list = msgspec.json.Decoder(list[self._root.type])  # type: ignore[name-defined]
        self._num_columns = len(paths)

    def of_lines(self, values: Sequence[bytes]) -> Columns | None:
        """The columns of values that are one object on one line each; None where one is not."""
        lines = object_lines(values)
        if lines is None:
            return None
        try:
            rows = self._decoder.decode_lines(lines)
        except FAILURES:
            return None
        return self._columns(rows) if len(rows) == len(values) else None

    def of_array(self, value: bytes) -> Columns | None:
        """The columns of a JSON array of objects; None where it is anything else, or empty."""
        try:
            rows = self._list.decode(value)
        except FAILURES:
            return None
        return self._columns(rows) if rows else None

    def of_one(self, raw: bytes | msgspec.Raw) -> list[Any]:
        """The values of one object. Raises: BadEvent where it is none."""
        try:
            return [column[0] for column in self._columns([self._decoder.decode(raw)])]
        except FAILURES:
            # Where the paths lead through something else than objects, only this way is open.
            return self.of_row(parsed(raw))

    def of_row(self, row: Any) -> list[Any]:
        """The values of one object that is parsed already. Raises: BadEvent where it is none."""
        if type(row) is not dict:
            raise BadEvent("wrong_type", f"an event is an object, not {kind_of(row)}")
        return [walk(row) for walk in self._walks]

    def of_rows(self, rows: Sequence[dict[str, Any]]) -> Columns:
        """The columns of objects that are parsed already."""
        return [[walk(row) for row in rows] for walk in self._walks]

    def _columns(self, rows: list[Any]) -> Columns:
        columns: Columns = [[]] * self._num_columns
        self._root.fill(rows, columns)
        return columns


class _Branch:
    """An object on the way to some fields: `msgspec`'s type of it, and the fields' columns."""

    def __init__(self) -> None:
        self._branches: dict[str, _Branch] = {}
        self._leaves: dict[str, list[tuple[int, Steps]]] = {}
        self.type: Any = None
        self._empty: Any = None
        self._getters: list[Callable[[Any], Any]] = []

    def add(self, path: Steps, column: int, rest: Steps) -> None:
        """Add a column at a path. rest: what is walked from there on, in Python."""
        if len(path) == 1:
            self._leaves.setdefault(path[0], []).append((column, rest))
        else:
            self._branches.setdefault(path[0], _Branch()).add(path[1:], column, rest)

    def make(self) -> None:
        """Make the types, once all columns are added."""
        names = [*self._branches, *self._leaves]
        attributes = [f"f{i}" for i in range(len(names))]
        kinds: list[Any] = []
        for branch in self._branches.values():
            branch.make()
            kinds.append(branch.type | None)
        kinds += [Any] * len(self._leaves)
        self.type = msgspec.defstruct(
            "Fields",
            [(a, kind, None) for a, kind in zip(attributes, kinds, strict=True)],
            rename=dict(zip(attributes, names, strict=True)),
            gc=False,
            eq=False,
        )
        self._empty = self.type()
        self._getters = [operator.attrgetter(a) for a in attributes]

    def fill(self, rows: Sequence[Any], columns: Columns) -> None:
        """Put the fields of rows of this type, or None for an absent one, into their columns."""
        if None in rows:
            rows = [self._empty if row is None else row for row in rows]
        # Field by field: a tuple for each row would be one more object to collect.
        below: list[Any] = [*self._branches.values(), *self._leaves.values()]
        for get, branch in zip(self._getters, below, strict=True):
            part = list(map(get, rows))
            if isinstance(branch, _Branch):
                branch.fill(part, columns)
                continue
            for column, rest in branch:
                columns[column] = list(map(follow(rest), part)) if rest else part


def follow(steps: Steps) -> Callable[[Any], Any]:
    """A function that follows steps through parsed JSON."""
    places = [(step, int(step) if PLACE.fullmatch(step) else -1) for step in steps]

    def walk(value: Any) -> Any:
        for step, place in places:
            if type(value) is dict:
                value = value.get(step)
            elif type(value) is list and 0 <= place < len(value):
                value = value[place]
            else:
                return None
        return value

    return walk


def parsed(raw: bytes | msgspec.Raw) -> Any:
    """Parse JSON of any shape. Raises: BadEvent."""
    try:
        return _any.decode(raw)
    except RecursionError:
        raise BadEvent("too_deep", TOO_DEEP) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadEvent("bad_json", str(error)) from None


def kind_of(value: Any) -> str:
    """What a value is, in JSON's words, for errors that show no values."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"a {type(value).__name__}"
