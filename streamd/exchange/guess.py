"""A mapping to start from, guessed of a topic's records, with what is doubtful about it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from streamd.decode.encoding import Times
from streamd.decode.error_texts import OTHER_NAMES, foreign
from streamd.decode.notices import NEAR
from streamd.decode.sources.cloudevents import ATTRIBUTE
from streamd.decode.sources.paths import follow, parsed
from streamd.decode.sources.rules import meets
from streamd.errors import BadEvent, SettingsError
from streamd.schema import DEFAULT_SET
from streamd.settings.sets import nearest_of
from streamd.settings.sources import NO_NAME, SourceSettings, fields_of, steps_of

MAX_WIDTH = 100
"""Columns of a settings file."""
MAX_DEPTH = 6
MAX_PATHS = 200
"""How deep into a record is looked, and at most how many fields: records are from outside."""
MAX_FEATURES = 8
MAX_CATEGORIES = 12
MAX_NAME = 60
HASH_WIDTH = 16
"""Most features and categories of a guess; longer names and values are left out. Width of a hash
of text whose categories are not known."""
UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
KINDS = ("kind", "type", "event", "eventtype", "action", "op", "name", "status")
"""Names of fields that often say what a record is."""
NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?")
"""Text that is a number."""
ROUND = ("payload", "schema")
BEGINS = {"src": ("start", "from", "orig", "send"), "dst": ("end", "dest", "target", "recv")}
"""How names of fields begin that often hold an end, as start_station."""
FEW = 4
"""A field of so many values or fewer says what kind a record is rather than whom it is about."""
RECORD_TIME = "none"
"""Chosen as the field of times, it means the timestamp of records."""
ENOUGH = 20
"""Records by which a key is told that never comes back."""


@dataclass(slots=True)
class Seen:
    """What was seen at one path. values: texts of scalars, up to some."""

    types: Counter[str] = field(default_factory=Counter)
    values: Counter[Any] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.types.total()


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The fields that a person named, by their paths; empty is guessed.

    time: RECORD_TIME takes the timestamp of records. features: None is guessed, an empty one leaves
    them out.
    """

    src: str = ""
    dst: str = ""
    time: str = ""
    features: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """tree: the settings. doubts: a sentence each. paths: of the fields that the records have."""

    tree: dict[str, Any]
    doubts: list[str]
    paths: list[str]

    @property
    def source(self) -> dict[str, Any]:
        """The source among the settings."""
        found: dict[str, Any] = self.tree["sources"][0]
        return found

    @property
    def settings(self) -> str:
        """The settings as YAML."""
        return to_yaml(self.tree)


def guess(
    topic: str,
    records: Sequence[Any],
    now_us: int,
    edge_set: str = DEFAULT_SET,
    chosen: Chosen = Chosen(),
) -> Guess:
    """Guess a source of records, as Kafka's or a file's rows have them.

    Args: now_us: wall clock; edge_set: of which the records' edges are; chosen: what is known.
    Raises: SettingsError where a chosen path leads to nothing.
    """
    doubts: list[str] = []
    objects, form = _objects(records, doubts)
    envelope, rows = _unwrapped(objects, records)
    source: dict[str, Any] = {"topic": topic}
    settings: dict[str, Any] = {}
    if edge_set != DEFAULT_SET:
        settings["graph"] = {"edge_sets": {edge_set: {}}}
        source["edge_set"] = edge_set
        doubts.append(f"edge set {edge_set} needs source and target where node sets are declared")
    if form != "json":
        source["format"] = form
    if envelope is not None:
        source["envelope"] = envelope
    if not rows:
        doubts.append("no record could be read as JSON, so nothing is known of the fields")
        fields = {"src": "user_id", "dst": "item_id"}
        declared = source | {"time": "record", "fields": fields}
        return Guess(tree=settings | {"sources": [declared]}, doubts=doubts, paths=[])

    # Times first, since what is a time is neither a key nor a feature.
    seen = _seen(rows)
    _check_chosen(chosen, seen)
    if chosen.time not in ("", RECORD_TIME):
        time, time_form = chosen.time, _chosen_form(chosen.time, seen, now_us)
    else:
        time, time_form = _time_of(seen, len(rows), now_us, doubts)
    times = {time} | {path for path, at in seen.items() if _time_form(at, now_us)}
    ends = _ends_of(seen, len(rows), times, doubts, (chosen.src, chosen.dst))
    mapped: dict[str, Any] = {"src": ends[0], "dst": ends[1]}
    # The field that looks like a time is left unmapped, and is no feature either.
    if chosen.time == RECORD_TIME:
        time_form = "record"
    elif time:
        mapped["time"] = time
    features = _features_of(seen, len(rows), {time, *ends}, chosen.features)
    if features:
        mapped["features"] = {name: path for name, (path, _) in features.items()}
    source |= {"time": time_form, "fields": mapped}
    _doubt_kinds(seen, len(rows), doubts)

    if features:
        declared = {name: kind for name, (_, kind) in features.items()}
        settings["graph"] = {"edge_sets": {edge_set: {"features": declared}}}
        doubts.append("features are fixed for the life of a log: leave out what says nothing")
    return Guess(tree=settings | {"sources": [source]}, doubts=doubts, paths=list(seen))


def _check_chosen(chosen: Chosen, seen: dict[str, Seen]) -> None:
    """Raises: SettingsError where a chosen path leads to nothing."""
    time = "" if chosen.time == RECORD_TIME else chosen.time
    for path in (chosen.src, chosen.dst, time, *(chosen.features or ())):
        if path and path not in seen:
            raise SettingsError(
                f"No record has a field {path}{nearest_of(path, seen)}.", "give one of them."
            )


def absent_paths(source: SourceSettings, records: Sequence[Any]) -> list[str]:
    """The paths of a source at which no record has a value, a sentence each.

    A rule's fields are searched in the records that meet its conditions. Paths into the envelope,
    the record's key and its headers are not checked; records that are not JSON are skipped.
    """
    _, rows = _unwrapped(_objects(records, [])[0], records)
    seen = _seen(rows)
    told: dict[str, None] = {}

    def look(paths: Iterable[str], among: list[dict[str, Any]]) -> None:
        for path in paths:
            walk = follow(steps_of(path))
            if among and path[0] != "$" and all(walk(row) is None for row in among):
                told[f"No record has a value at {path}{nearest_of(path, seen)}."] = None

    for rule in (source, source.deletes, source.labels, source.nodes):
        if rule is not None and rule.fields is not None:
            # A condition may test for null, which an absent field satisfies.
            look((path for path, values in rule.where.items() if None not in values), rows)
            met = [row for row in rows if meets(rule.where, row)]
            look((f.path for _, f in fields_of(rule.fields) if f.path is not None), met)
    return list(told)


def to_yaml(settings: dict[str, Any]) -> str:
    """Settings as YAML, in the order of the tree."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=MAX_WIDTH)


def _objects(records: Sequence[Any], doubts: list[str]) -> tuple[list[dict[str, Any]], str]:
    """The objects in the values that are JSON, and the format."""
    objects: list[dict[str, Any]] = []
    form = "json"
    others: Counter[str] = Counter()
    for record in records:
        if record.value is None:
            others["a null value"] += 1
            continue
        try:
            value = parsed(record.value)
        except BadEvent:
            # Several lines, each an object, are NDJSON.
            lines = [line for line in record.value.splitlines() if line.strip()]
            try:
                value = [parsed(line) for line in lines] if len(lines) > 1 else None
            except BadEvent:
                value = None
            if value is None:
                others[foreign(record.value[:64]) or "not JSON"] += 1
                continue
            form = "ndjson"
        objects += [v for v in (value if isinstance(value, list) else [value]) if type(v) is dict]
    doubts += [f"{n} of {len(records)} records: {what}" for what, n in others.items()]
    return objects, form


def _unwrapped(
    objects: list[dict[str, Any]], records: Sequence[Any]
) -> tuple[str | None, list[dict[str, Any]]]:
    """The envelope around most of the objects, and the data inside it."""
    inner = [o["payload"] if o.keys() >= {*ROUND} else o for o in objects]
    changes = [o for o in inner if type(o) is dict and {"op", "before", "after"} <= o.keys()]
    if 2 * len(changes) > len(objects):
        return "debezium", [c["after"] for c in changes if type(c["after"]) is dict]
    if 2 * sum("payload" in o and "schema" in o for o in objects) > len(objects):
        return "connect", [o for o in inner if type(o) is dict]
    if 2 * sum("specversion" in o for o in objects) > len(objects):
        return "cloudevents", [o["data"] for o in objects if type(o.get("data")) is dict]
    headers = [{name for name, _ in record.headers or ()} for record in records]
    if 2 * sum(f"{ATTRIBUTE}type" in names for names in headers) > max(1, len(records)):
        return "cloudevents", objects
    return None, objects


def _seen(rows: list[dict[str, Any]]) -> dict[str, Seen]:
    """What is at each path of some objects, in the order in which they have them."""
    seen: dict[str, Seen] = {}
    for row in rows:
        for path, value in _scalars(row, (), 0):
            if path not in seen and len(seen) >= MAX_PATHS:
                continue
            at = seen.setdefault(path, Seen())
            at.types[type(value).__name__] += 1
            at.values[tuple(value) if isinstance(value, list) else value] += 1
    return seen


def _scalars(value: Any, steps: tuple[str, ...], depth: int) -> Iterator[tuple[str, Any]]:
    """The paths of an object that lead to a scalar or to a list of numbers, and what is there."""
    if depth > MAX_DEPTH:
        return
    if type(value) is dict:
        for name, inner in value.items():
            is_name = name and len(name) <= MAX_NAME and not NO_NAME.search(name)
            if is_name and name.isprintable() and name[0] != "$":
                yield from _scalars(inner, (*steps, name.replace(".", "\\.")), depth + 1)
    elif type(value) is list:
        if value and all(type(v) in (int, float) for v in value):
            yield ".".join(steps), value
        elif value and type(value[0]) is dict:
            yield from _scalars(value[0], (*steps, "0"), depth + 1)
    elif value is not None:
        yield ".".join(steps), value


def _plain(path: str) -> list[str]:
    """A path's last name, and its last two as one, without case and marks."""
    steps = [re.sub(r"[^a-z0-9]", "", step.lower()) for step in path.split(".")]
    return [steps[-1], "".join(steps[-2:])]


def _time_of(seen: dict[str, Seen], count: int, now_us: int, doubts: list[str]) -> tuple[str, str]:
    """The path of the time, empty for none, and its form."""
    found: list[tuple[int, str, str]] = []
    for path, at in seen.items():
        form = _time_form(at, now_us)
        if form:
            # A name that means time counts most, then how many records have it.
            rank = 2 * any(name in OTHER_NAMES["time"] or name == "time" for name in _plain(path))
            rank += any(word in _plain(path)[0] for word in ("time", "date", "ts", "created"))
            found.append((rank * count + at.count, path, form))
    if not found:
        doubts.append("no field looks like a time: the Kafka timestamp is taken")
        return "", "record"
    found.sort(key=lambda f: -f[0])
    _, path, form = found[0]
    if len(found) > 1:
        doubts.append(f"the time may also be {', '.join(f[1] for f in found[1:4])}")
    if seen[path].count < count:
        doubts.append(f"{path} is missing in {count - seen[path].count} of {count} records")
    return path, form


def _chosen_form(path: str, seen: dict[str, Seen], now_us: int) -> str:
    """The form of the times at a chosen path. Raises: SettingsError if there are none."""
    form = _time_form(seen[path], now_us)
    if not form:
        raise SettingsError(
            f"{path} holds no times as seconds, ms, us since 1970 or ISO 8601.",
            "give another field, or none to take the Kafka timestamp.",
        )
    return form


def _time_form(at: Seen, now_us: int) -> str:
    """How the values at a path are written as times; empty where they are none."""
    values = list(at.values)
    if at.types.keys() == {"str"}:
        iso = Times("iso8601")
        if all("-" in v and iso.column([v]) is not None for v in values):
            return "iso8601"
        values = [int(v) if re.fullmatch("[0-9]{9,17}", v) else 0 for v in values]
    elif not at.types.keys() <= {"int", "float"}:
        return ""
    for form, scale in UNITS_US.items():
        if all(abs(v * scale - now_us) < 4 * NEAR * now_us for v in values):
            return form
    return ""


def _ends_of(
    seen: dict[str, Seen],
    count: int,
    taken: set[str],
    doubts: list[str],
    chosen: tuple[str, str],
) -> tuple[str, str]:
    """The paths of source and destination. taken: paths of times. chosen: what is known of the two,
    else empty."""
    keys = {
        path: at
        for path, at in seen.items()
        if path not in taken | {*chosen}
        and at.types.keys() <= {"int", "str"}
        and 2 * at.count >= count
        and not _is_fraction(at)
    }
    ends: list[str] = []
    for name, given in zip(("src", "dst"), chosen, strict=True):
        if given:
            ends.append(given)
            continue
        known = (name, *OTHER_NAMES[name])
        named = [p for p in keys if p not in ends and any(n in known for n in _plain(p))]
        if named:
            ends.append(named[0])
            continue
        # No whole name tells: its begin, else an id that comes back, else whatever comes back.
        rest = [p for p in keys if p not in ends]
        again = [p for p in rest if FEW < len(keys[p].values) < keys[p].count]
        begin = [p for p in again if _plain(p)[0].startswith(BEGINS[name])]
        ids = [p for p in again if _plain(p)[0].endswith(("id", "key", "code"))]
        if likely := begin or ids or again or rest:
            ends.append(max(likely, key=lambda p: len(keys[p].values)))
            doubts.append(f"{name} is {ends[-1]} only because its values look like keys")
        else:
            ends.append(f"REPLACE_{name}")
            doubts.append(f"no field looks like {name}")
    for name, path in zip(("src", "dst"), ends, strict=True):
        missing = count - seen[path].count if path in seen else 0
        if missing:
            doubts.append(f"{path} ({name}) is missing in {missing} of {count} records")
        if path in seen and len(seen[path].values) == seen[path].count >= ENOUGH:
            doubts.append(
                f"{path} ({name}) is another one in every record: of a key that never comes back "
                "nothing can be learned"
            )
    doubts.append(
        f"if a key means one thing as {ends[0]} and another as {ends[1]}, such as user 7 and item "
        '7, give each a prefix: {path: .., prefix: "user:"}'
    )
    return ends[0], ends[1]


def _is_fraction(at: Seen) -> bool:
    """Whether values are numbers with a point, written as text as in a table: they name nothing."""
    texts = [v for v in at.values if isinstance(v, str)]
    return any("." in v for v in texts) and all(NUMBER.fullmatch(v) for v in texts)


def _features_of(
    seen: dict[str, Seen], count: int, taken: set[str], chosen: Sequence[str] | None
) -> dict[str, tuple[str, Any]]:
    """Features by name: path and declaration. chosen: their paths, None to guess them."""
    features: dict[str, tuple[str, Any]] = {}
    for path in seen if chosen is None else chosen:
        at = seen[path]
        if chosen is None and not _may_be_feature(path, at, count, taken, len(features)):
            continue
        kind = _kind_of(at)
        if kind is None and chosen is not None:
            kind = _kind_of_few(at)
        if kind is None:
            continue
        missing: Any = {"number": 0, "bool": False}.get(str(kind.get("type")), "")
        if "vector" in kind:
            missing = [0] * kind["vector"]
        name = re.sub(r"[^A-Za-z0-9]+", "_", path).strip("_") or "feature"
        if name not in features:
            whole = at.count == count
            features[name] = (path, kind if whole else kind | {"missing": missing})
    return features


def _may_be_feature(path: str, at: Seen, count: int, taken: set[str], have: int) -> bool:
    """Whether a field that nobody chose is looked at: it is often there, and names nothing."""
    if path in taken or 2 * at.count < count or have == MAX_FEATURES:
        return False
    return not _plain(path)[0].endswith("id") and _plain(path)[0] not in ("version", "offset")


def _kind_of(at: Seen) -> dict[str, Any] | None:
    """What kind of feature the values at a path could be; None for none."""
    kinds = at.types.keys()
    if kinds == {"bool"}:
        return {"type": "bool"}
    if kinds <= {"int", "float"} and len(at.values) > 1:
        return {"type": "number"}
    if kinds == {"list"}:
        widths = {len(v) for v in at.values}
        return {"vector": widths.pop()} if len(widths) == 1 else None
    # In a table numbers are text; codes such as 007 are none.
    if kinds <= {"int", "float", "str"} and len(at.values) > 1:
        texts = [v for v in at.values if isinstance(v, str)]
        if all(NUMBER.fullmatch(v) for v in texts):
            return {"type": "number"}
    # Text is a category where few values come again and again.
    texts = sorted(v for v in at.values if isinstance(v, str) and len(v) <= MAX_NAME)
    if kinds == {"str"} and 1 < len(at.values) <= MAX_CATEGORIES and 5 * len(texts) <= at.count:
        return {"categories": texts}
    return None


def _kind_of_few(at: Seen) -> dict[str, Any]:
    """The kind of a feature that a person chose, of which too few values were seen to tell."""
    if at.types.keys() <= {"int", "float"}:
        return {"type": "number"}
    return {"hash": HASH_WIDTH}


def _doubt_kinds(seen: dict[str, Seen], count: int, doubts: list[str]) -> None:
    """Say which fields may tell what a record is."""
    for path, at in seen.items():
        few = 1 < len(at.values) <= MAX_CATEGORIES and at.types.keys() == {"str"}
        if few and at.count == count and _plain(path)[0] in KINDS:
            values = ", ".join(
                sorted(v for v in at.values if len(v) <= MAX_NAME and v.isprintable())
            )
            doubts.append(
                f"{path} is one of {values}: if not all are edges, say where: {{{path}: [..]}}"
            )
