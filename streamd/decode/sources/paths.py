"""Reads chosen fields of JSON records into columns of Python values, and ignores all other fields.

A shape is made from paths. It makes types for `msgspec`, which skips all other fields without
making objects of them.
"""

import datetime
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streamd.decode.wire import TOO_DEEP, json_error, object_lines
from streamd.errors import BadEvent

Steps = tuple[str, ...]
Columns = list[Sequence[Any]]
"""One sequence of values for each path of a shape; None if a record has no such field."""
Walk = Callable[[Any], Any]
"""A function from parsed JSON to a value inside it, None if there is none."""
INDEX = re.compile("[0-9]{1,9}")
"""A step that is an index if the value is a list."""
BYTES, FLOAT = "base64", "float"
"""The only name in an object that represents, in JSON, bytes that are not text, or infinity."""
NO_TEXT, NO_NUMBER = "bytes that are not UTF-8 text", "an infinite number"
MAX_BLANKS = 64
"""Text that contains JSON has its first brace within so many characters."""
FAILURES = (msgspec.MsgspecError, UnicodeError, RecursionError)
_any = msgspec.json.Decoder()


class Shape:
    """The fields at some paths of a record. Owner: a mapping; it has no state.

    A field that is absent, null, or below a scalar reads as None. Text that contains JSON is read
    as that JSON if a path leads into it.
    """

    def __init__(self, paths: Sequence[Steps]) -> None:
        # A path's types end before an index of a list, and at the end of another path.
        ends = {path[:i] for path in paths for i in range(1, len(path)) if INDEX.fullmatch(path[i])}
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
        """The columns of values that are one object on one line each; None if one is not."""
        lines = object_lines(values)
        if lines is None:
            return None
        try:
            rows = self._decoder.decode_lines(lines)
            # `object_lines` explains why equal counts prove one object a line.
            return self._columns(rows) if len(rows) == len(values) else None
        except FAILURES:
            return None

    def of_array(self, value: bytes) -> Columns | None:
        """The columns of a JSON array of objects; None if the value is anything else, or empty."""
        try:
            rows = self._list.decode(value)
            return self._columns(rows) if rows else None
        except FAILURES:
            return None

    def of_one(self, raw: bytes | msgspec.Raw) -> list[Any]:
        """The values of one object. Raises: BadEvent if it is none."""
        try:
            return [column[0] for column in self._columns([self._decoder.decode(raw)])]
        except FAILURES:
            # If a path leads through a value that is no object, read the parsed JSON instead.
            return self.of_row(parsed(raw))

    def of_row(self, row: Any) -> list[Any]:
        """The values of one object that is already parsed. Raises: BadEvent if it is none."""
        row = open_text(row)
        if type(row) is not dict:
            raise BadEvent("wrong_type", f"an event is an object, not {kind_of(row)}")
        values = [None] * self._num_columns
        self._root.read(row, values)
        return values

    def of_rows(self, rows: Sequence[dict[str, Any]]) -> Columns:
        """The columns of objects that are already parsed."""
        return list(zip(*map(self.of_row, rows), strict=True)) or [[]] * self._num_columns

    def _columns(self, rows: list[Any]) -> Columns:
        columns: Columns = [[]] * self._num_columns
        self._root.fill(rows, columns)
        return columns


class _Branch:
    """An object on the path to some fields: its type for `msgspec`, and the fields' columns."""

    def __init__(self) -> None:
        self._branches: dict[str, _Branch] = {}
        self._leaves: dict[str, list[tuple[int, Walk | None]]] = {}
        self.type: Any = None
        self._empty: Any = None
        self._decoder: Any = None
        self._getters: list[Callable[[Any], Any]] = []

    def add(self, path: Steps, column: int, rest: Steps) -> None:
        """Add a column at a path. rest: steps after it, which are walked in Python."""
        if len(path) == 1:
            walk = follow(rest) if rest else None
            self._leaves.setdefault(path[0], []).append((column, walk))
        else:
            self._branches.setdefault(path[0], _Branch()).add(path[1:], column, rest)

    def make(self) -> None:
        """Make the types, after all columns are added."""
        names = [*self._branches, *self._leaves]
        attributes = [f"f{i}" for i in range(len(names))]
        kinds: list[Any] = []
        for branch in self._branches.values():
            branch.make()
            # The object may be text that contains JSON.
            kinds.append(branch.type | str | None)
        kinds += [Any] * len(self._leaves)
        self.type = msgspec.defstruct(
            "Fields",
            [(a, kind, None) for a, kind in zip(attributes, kinds, strict=True)],
            rename=dict(zip(attributes, names, strict=True)),
            gc=False,
            eq=False,
        )
        self._empty = self.type()
        self._decoder = msgspec.json.Decoder(self.type)
        self._getters = [operator.attrgetter(a) for a in attributes]

    def fill(self, rows: Sequence[Any], columns: Columns) -> None:
        """Write the fields of rows to their columns.

        rows: of this type, text, or None for an absent one. Raises: msgspec's errors, if text
        contains JSON of another form.
        """
        if None in rows:
            rows = [self._empty if row is None else row for row in rows]
        # Field by field: a tuple for each row would be another object for the garbage collector.
        try:
            parts = [list(map(get, rows)) for get in self._getters]
        except AttributeError:
            # Text lacks these attributes. So only topics with JSON as text pay for the check.
            rows = [self._of_text(row) if type(row) is str else row for row in rows]
            parts = [list(map(get, rows)) for get in self._getters]
        below: list[Any] = [*self._branches.values(), *self._leaves.values()]
        for part, branch in zip(parts, below, strict=True):
            if isinstance(branch, _Branch):
                branch.fill(part, columns)
                continue
            for column, walk in branch:
                columns[column] = part if walk is None else list(map(walk, part))

    def _of_text(self, text: str) -> Any:
        """Parse the object in text, an empty one if there is none. Raises: msgspec's errors, if the
        object has another form."""
        if text[:MAX_BLANKS].lstrip()[:1] != "{":
            return self._empty
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            raise
        except FAILURES:
            return self._empty

    def read(self, value: Any, values: list[Any]) -> None:
        """Write the fields of parsed JSON into `values`, by the numbers of their columns."""
        # Below a scalar there are no fields: the columns keep None.
        value = open_text(value)
        if type(value) is not dict:
            return
        for name, branch in self._branches.items():
            branch.read(value.get(name), values)
        for name, leaves in self._leaves.items():
            for column, walk in leaves:
                at = value.get(name)
                values[column] = at if walk is None else walk(at)


def open_text(value: Any) -> Any:
    """Parse text that is a JSON object or list; any other value is unchanged."""
    if type(value) is not str or value[:MAX_BLANKS].lstrip()[:1] not in ("{", "["):
        return value
    try:
        return _any.decode(value)
    except FAILURES:
        return value


def follow(steps: Steps) -> Walk:
    """Make a function that follows steps through parsed JSON, and into text that contains JSON."""
    indexed = [(step, int(step) if INDEX.fullmatch(step) else -1) for step in steps]

    def walk(value: Any) -> Any:
        for step, index in indexed:
            if type(value) is str:
                value = open_text(value)
            if type(value) is dict:
                value = value.get(step)
            elif type(value) is list and 0 <= index < len(value):
                value = value[index]
            else:
                return None
        return value

    return walk


def first_value(values: Sequence[Any]) -> Any:
    """The first value that is neither null, NaN nor empty text; None if there is none."""
    there = (value for value in values if value is not None and value == value)
    return next((value for value in there if value != ""), None)


def text_above(value: Any, steps: Steps) -> str:
    """The path of the text in parsed JSON that ends the way along steps; "" if no text does."""
    for at in range(1, len(steps)):
        if type(found := follow(steps[:at])(value)) is str and found == open_text(found):
            return ".".join(steps[:at])
    return ""


def parsed(raw: bytes | msgspec.Raw) -> Any:
    """Parse JSON of any shape. Raises: BadEvent."""
    try:
        return _any.decode(raw)
    except RecursionError:
        raise BadEvent("too_deep", TOO_DEEP) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise json_error(error, raw) from None


def kind_of(value: Any) -> str:
    """The kind of a value in JSON's terms, for errors, which show no values."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number" if value - value == 0 else NO_NUMBER
    if isinstance(value, bytes):
        return NO_TEXT
    if isinstance(value, datetime.datetime):
        return "a time"
    if isinstance(value, dict) and len(value) == 1:
        return {BYTES: NO_TEXT, FLOAT: NO_NUMBER}.get(next(iter(value)), "an object")
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"a {type(value).__name__}"
