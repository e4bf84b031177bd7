"""Collects the fields of records and their values, from which a mapping is guessed."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamd.decode.error_texts import foreign
from streamd.decode.headers import content_of
from streamd.decode.plain_values import as_id
from streamd.decode.sources.cloudevents import ATTRIBUTE
from streamd.decode.sources.paths import open_text, parsed
from streamd.decode.sources.registry_framing import ID_HEADER
from streamd.decode.sources.unsent_values import UnsentValue
from streamd.decode.wire import OWN_EVENT
from streamd.errors import BadEvent, SettingsError
from streamd.settings.sources import NO_NAME, UNAVAILABLE

MAX_DEPTH = 6
MAX_PATHS = 200
"""Maximum depth and number of the fields that are read, since records come from outside."""
MAX_NAME = 60
"""Maximum length of a field's name, and of a category's value."""
ROUND = ("payload", "schema")
ID_IN_HEADER = (
    f"the header {ID_HEADER} has a schema's id; give the topic an entry in sources, with format: "
    "avro or protobuf"
)
UNSENT = UnsentValue(UNAVAILABLE)
NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?")
"""Text that is a number."""
MAX_TEXT = 64
"""Maximum characters of the usual key: longer text is more likely a message."""


@dataclass(slots=True)
class Seen:
    """The values at one path, without nulls, and their types.

    types: type name -> number of values. values: value -> number of records.
    """

    types: Counter[str] = field(default_factory=Counter)
    values: Counter[Any] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of records that have a value."""
        return self.types.total()

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, or text of numbers as in CSV."""
        if self.types.keys() <= {"int", "float"}:
            return True
        texts = [v for v in self.values if isinstance(v, str)]
        return self.types.keys() <= {"int", "float", "str"} and all(map(NUMBER.fullmatch, texts))

    @property
    def is_fraction(self) -> bool:
        """Whether the values are text of numbers, some with a decimal point, as in CSV."""
        texts = [v for v in self.values if isinstance(v, str)]
        return any("." in v for v in texts) and all(map(NUMBER.fullmatch, texts))

    @property
    def is_long_text(self) -> bool:
        """Whether the values are longer than keys are."""
        sizes = [len(v) for v in self.values if isinstance(v, str)]
        return bool(sizes) and sum(sizes) > 2 * MAX_TEXT * len(sizes)


@dataclass(slots=True)
class SeenList:
    """The lists at one path: how many there are, the sum of their elements, and the longest one."""

    count: int = 0
    elements: int = 0
    longest: int = 0

    def doubt(self, name: str, is_each: bool) -> str:
        """A sentence on whether all elements of the list are read. name: of the list. is_each: each
        element is an edge."""
        if self.longest == 1:
            of_more = "each would be an edge of its own" if is_each else "only the first is read"
            return f"{name} has one element in all of these records: of several, {of_more}"
        if is_each:
            edges = f"each an edge of its own: {self.elements} edges of {self.count} records"
            return f"{name} has up to {self.longest} elements, {edges}"
        return (
            f"{name} has up to {self.longest} elements, only the first is read: "
            f"{self.elements - self.count} of {self.elements} are lost; send an event for each"
        )


@dataclass(slots=True)
class Fields:
    """The paths and values of some rows, in the order in which the rows have them.

    scalars: by path; elements of lists by the path of the first one. lists: of objects or text, by
    path. texts: paths of text that contains JSON. rows: all rows. too_deep: a path below which no
    field was read, because the depth is MAX_DEPTH; "" for none.
    """

    rows: list[dict[str, Any]]
    scalars: dict[str, Seen] = field(default_factory=dict)
    lists: dict[str, SeenList] = field(default_factory=dict)
    texts: dict[str, None] = field(default_factory=dict)
    too_deep: str = ""

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def list_of(self, path: str) -> tuple[str, SeenList] | None:
        """The list, with its path, that a path enters by the first element; None if there is
        none."""
        for name, found in self.lists.items():
            if path.startswith(f"{name}.0"):
                return name, found
        return None

    def doubts_of_names(self) -> list[str]:
        """Sentences on names of fields that are values, as in a table without a header."""
        names = (path.replace("\\.", ".") for path in self.scalars)
        number = next((name for name in names if NUMBER.fullmatch(name)), None)
        if number is None:
            return []
        return [f"a field is called {number}: if that is a value, the table has no header; add one"]

    def missing(self, path: str) -> int:
        """Number of rows without a value at a path."""
        return self.count - self.scalars[path].count if path in self.scalars else 0


def fields_of_rows(rows: list[dict[str, Any]]) -> Fields:
    """Collect the fields of rows, at most MAX_PATHS of them."""
    fields = Fields(rows)
    seen = fields.scalars
    for row in rows:
        for path, value in _scalars(row, (), 0, fields):
            # Continue to count known paths, but take no new ones.
            if path not in seen and len(seen) >= MAX_PATHS:
                continue
            at = seen.setdefault(path, Seen())
            at.types[type(value).__name__] += 1
            at.values[tuple(value) if isinstance(value, list) else value] += 1
    # A column of whole floats becomes one of integers, as for keys.
    for at in seen.values():
        if at.types.keys() <= {"int", "float"}:
            ids = [as_id(value) for value in at.values]
            if set(map(type, ids)) == {int}:
                at.types = Counter({"int": at.count})
                at.values = Counter(dict(zip(ids, at.values.values(), strict=True)))
    return fields


def _scalars(
    value: Any, steps: tuple[str, ...], depth: int, fields: Fields
) -> Iterator[tuple[str, Any]]:
    """Yield the paths of an object that lead to a scalar or to a list of numbers, with the
    value."""
    if depth > MAX_DEPTH:
        fields.too_deep = ".".join(steps)
        return
    if type(value) is dict:
        for name, inner in value.items():
            is_name = name and len(name) <= MAX_NAME and not NO_NAME.search(name)
            if is_name and name.isprintable():
                # Escape a leading $, which in a path means the envelope or the record.
                step = name.replace(".", "\\.")
                step = step if steps or step[0] != "$" else f"\\{step}"
                yield from _scalars(inner, (*steps, step), depth + 1, fields)
    elif type(value) is list:
        if value and all(type(v) in (int, float) for v in value):
            yield ".".join(steps), value
        elif value and steps and type(value[0]) in (dict, str):
            path = ".".join(steps)
            if path in fields.lists or len(fields.lists) < MAX_PATHS:
                found = fields.lists.setdefault(path, SeenList())
                found.count += 1
                found.elements += len(value)
                found.longest = max(found.longest, len(value))
            yield from _scalars(value[0], (*steps, "0"), depth + 1, fields)
    # Empty text is no value, as in an empty cell; nor is Debezium's placeholder for an unsent
    # value.
    elif value is not None and value != "" and not UNSENT.is_one(value):
        path = ".".join(steps)
        if type(value) is str and value[:1] in ("{", "[") and _is_json(value):
            if len(fields.texts) < MAX_PATHS:
                fields.texts[path] = None
            yield from _scalars(open_text(value), steps, depth + 1, fields)
            return
        yield path, value


def _is_json(text: str) -> bool:
    """Whether text is a JSON object or a list of objects."""
    try:
        value = parsed(text.encode())
    except (BadEvent, UnicodeEncodeError):
        return False
    return type(value) is dict or (type(value) is list and bool(value) and type(value[0]) is dict)


def objects_of(records: Sequence[Any], doubts: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Parse the values that are JSON. Adds a doubt for each kind of value that is not.

    Returns: the objects, and the format: json or ndjson.
    """
    objects: list[dict[str, Any]] = []
    form = "json"
    others: Counter[str] = Counter()
    for record in records:
        if record.value is None:
            others["a null value"] += 1
            continue
        # `streamd erase` sends deletes to topics of other records.
        if content_of(record.headers or ()) == OWN_EVENT:
            others["an event of streamd's own, which needs no source"] += 1
            continue
        try:
            value = parsed(record.value)
        except BadEvent:
            # Several lines of JSON are NDJSON.
            lines = [line for line in record.value.splitlines() if line.strip()]
            try:
                value = [parsed(line) for line in lines] if len(lines) > 1 else None
            except BadEvent:
                value = None
            if value is None:
                has_id = any(name == ID_HEADER for name, _ in record.headers or ())
                others[ID_IN_HEADER if has_id else foreign(record.value[:64]) or "not JSON"] += 1
                continue
            form = "ndjson"
        objects += [v for v in (value if isinstance(value, list) else [value]) if type(v) is dict]
    doubts += [f"{n} of {len(records)} records: {what}" for what, n in others.items()]
    return objects, form


def no_rows(topic: str, records: Sequence[Any], doubts: Sequence[str]) -> SettingsError:
    """The error of records without a row of data. doubts: sentences on the records."""
    if not records:
        return SettingsError(f"{topic} has no records.", "send some, or give a file of them.")
    why = "; ".join(doubts) or "they are JSON without an object of data"
    return SettingsError(
        f"Nothing can be guessed from the {len(records)} records of {topic}: {why}.",
        "for another format than JSON give it an entry in `sources`, with any fields, such as "
        f"{{topic: {topic}, format: avro, time: record, fields: {{src: x, dst: y}}}}; "
        "`streamd sources guess` then reads the records by that format and by schema_registry.",
    )


def unwrapped(
    objects: list[dict[str, Any]], records: Sequence[Any], doubts: list[str]
) -> tuple[str | None, list[dict[str, Any]]]:
    """Detect the envelope of most objects. Adds doubts about it.

    Returns: the envelope's name, None for none; and the data inside it.
    """
    inner = [o["payload"] if o.keys() >= {*ROUND} else o for o in objects]
    changes = [o for o in inner if type(o) is dict and {"op", "before", "after"} <= o.keys()]
    if 2 * len(changes) > len(objects):
        if any(type(o) is dict and o.get("op") == "t" for o in inner):
            doubts.append(doubt_of_truncates("op", "t"))
        after = [c["after"] for c in changes]
        texts = [row for row in map(_object_in, after) if row is not None]
        if texts:
            doubts.append(
                f"`after` is JSON as text in {len(texts)} of {len(changes)} records, as MongoDB's "
                "connector writes it: fields inside it are read as those of an object"
            )
        return "debezium", [row for row in after if type(row) is dict] + texts
    if 2 * sum("payload" in o and "schema" in o for o in objects) > len(objects):
        return "connect", [o for o in inner if type(o) is dict]
    if 2 * sum("specversion" in o for o in objects) > len(objects):
        return "cloudevents", [o["data"] for o in objects if type(o.get("data")) is dict]
    # In CloudEvents' binary mode the attributes are headers.
    headers = [{name for name, _ in record.headers or ()} for record in records]
    if 2 * sum(f"{ATTRIBUTE}type" in names for names in headers) > max(1, len(records)):
        return "cloudevents", objects
    return None, objects


def doubt_of_truncates(path: str, word: str) -> str:
    """A sentence on records that delete all rows of a table."""
    what = "dropped" if "drop" in word.lower() else "truncated"
    return f"{path} is {word} for a {what} table, which names no rows: edges before it stay"


def _object_in(value: Any) -> dict[str, Any] | None:
    """Parse text that is a JSON object; None for anything else."""
    if type(value) is not str or not _is_json(value):
        return None
    found = parsed(value.encode())
    return found if type(found) is dict else None
