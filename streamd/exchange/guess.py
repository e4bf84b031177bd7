"""A mapping to start from, guessed of a topic's records, with what is doubtful about it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from streamd.decode.encoded_decimals import WAY_OUT, doubt_of_decimals
from streamd.decode.sources.paths import follow
from streamd.errors import SettingsError
from streamd.exchange.field_names import KINDS, head_of, is_technical, last_words
from streamd.exchange.field_values import (
    MAX_NAME,
    Fields,
    Seen,
    fields_of_rows,
    objects_of,
    unwrapped,
)
from streamd.exchange.guess_changes import DeleteMark, delete_rule, find_delete_mark
from streamd.exchange.guess_endpoints import doubts_of_endpoints, find_endpoints
from streamd.exchange.guess_times import FORMS, FoundTimes, find_time, form_of
from streamd.schema import DEFAULT_SET
from streamd.settings.sets import nearest_of
from streamd.settings.sources import steps_of

MAX_WIDTH = 100
"""Columns of a settings file."""
MAX_FEATURES = 8
MAX_CATEGORIES = 12
HASH_WIDTH = 16
"""Most features and categories of a guess. Width of a hash of text whose categories are not
known."""
RECORD_TIME = "none"
"""Chosen as the field of times, it means the timestamp of records."""
CODES = frozenset(
    ("id", "ids", "uuid", "guid", "key", "port", "p", "zip", "version", "offset")
    + ("xid", "lsn", "scn", "seq", "sequence", "gtid")
)
"""Last words of the names of numbers that measure nothing."""


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
    Raises: SettingsError if a chosen path leads to nothing.
    """
    doubts: list[str] = []
    objects, form = objects_of(records, doubts)
    envelope, rows = unwrapped(objects, records, doubts)
    source: dict[str, Any] = {"topic": topic}
    settings: dict[str, Any] = {}
    if edge_set != DEFAULT_SET:
        settings["graph"] = {"edge_sets": {edge_set: {}}}
        source["edge_set"] = edge_set
        doubts.append(f"edge set {edge_set} needs source and target if node sets are declared")
    if form != "json":
        source["format"] = form
    if envelope is not None:
        source["envelope"] = envelope
    if not rows:
        doubts.append("no record could be read as JSON, so nothing is known of the fields")
        absent = {"src": "user_id", "dst": "item_id"}
        declared = source | {"time": "record", "fields": absent}
        return Guess(tree=settings | {"sources": [declared]}, doubts=doubts, paths=[])

    # Deletes first: they may lack fields that all others have.
    whole = fields_of_rows(rows)
    mark = None if envelope == "debezium" else find_delete_mark(whole)
    fields = fields_of_rows(_without_deletes(rows, mark)) if mark is not None else whole
    _check_chosen(chosen, fields)
    mapping, features = _map_fields(fields, mark, chosen, now_us, doubts)

    # Then the mark of deletes splits the records.
    if mark is not None:
        source |= {"time": mapping["time"], "where": {mark.path: list(mark.kept)}}
        if (rule := delete_rule(mark, mapping["fields"], whole, doubts)) is not None:
            source["deletes"] = rule
    _doubt_kinds(fields, mark, doubts)
    if features:
        settings["graph"] = {"edge_sets": {edge_set: {"features": features}}}
        doubts.append("features are fixed for the life of a log: leave out those that tell nothing")
    tree = settings | {"sources": [source | mapping]}
    return Guess(tree=tree, doubts=doubts, paths=list(fields.scalars))


def _map_fields(
    fields: Fields, mark: DeleteMark | None, chosen: Chosen, now_us: int, doubts: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The form of times and the fields of edges, and the declarations of their features."""
    # A time is neither a key nor a feature, nor is a mark of deletes.
    times = _time_of(fields, chosen, now_us, doubts, mark is not None)
    taken = times.all | ({mark.path} if mark is not None else frozenset())
    ends = find_endpoints(fields, frozenset(taken), (chosen.src, chosen.dst))
    mapped: dict[str, Any] = {"src": ends.src, "dst": ends.dst}
    if times.path:
        mapped["time"] = times.path
    doubts += doubts_of_endpoints(fields, ends, frozenset(taken))
    doubts += _doubts_of_decimals(fields, (ends.src, ends.dst))

    # Everything else that often has a value may be a feature.
    features = _features_of(fields, frozenset(taken | {ends.src, ends.dst}), chosen.features)
    paths = {name: path for name, (path, _) in features.items()}
    doubts += _doubts_of_lists(fields, [*mapped.values(), *paths.values()])
    if features:
        mapped["features"] = paths
    declared = {name: kind for name, (_, kind) in features.items()}
    return {"time": times.form, "fields": mapped}, declared


def _without_deletes(rows: list[dict[str, Any]], mark: DeleteMark) -> list[dict[str, Any]]:
    """The rows that are there by a mark: no deletes, and no truncates; all if there are none."""
    value = follow(steps_of(mark.path))
    return [row for row in rows if value(row) in mark.kept] or rows


def _time_of(
    fields: Fields, chosen: Chosen, now_us: int, doubts: list[str], are_changes: bool
) -> FoundTimes:
    """The chosen time, else the likeliest. Raises: SettingsError if the chosen one is no time."""
    if not chosen.time:
        return find_time(fields, now_us, doubts, are_changes)
    found = find_time(fields, now_us, [])
    # A field that looks like a time is then left unmapped, and is no feature either.
    if chosen.time == RECORD_TIME:
        return FoundTimes("", "record", found.all)
    form = form_of(chosen.time, fields.scalars[chosen.time], now_us)
    if form not in FORMS and chosen.time == found.path:
        form = found.form
    if form not in FORMS:
        raise SettingsError(
            f"{chosen.time} holds no times as days, s, ms, us or ns since 1970 or ISO 8601.",
            "give another field, or none to take the Kafka timestamp.",
        )
    return FoundTimes(chosen.time, form, found.all | {chosen.time})


def _check_chosen(chosen: Chosen, fields: Fields) -> None:
    """Raises: SettingsError if a chosen path leads to nothing."""
    time = "" if chosen.time == RECORD_TIME else chosen.time
    for path in (chosen.src, chosen.dst, time, *(chosen.features or ())):
        if path and path not in fields.scalars:
            raise SettingsError(
                f"No record has a field {path}{nearest_of(path, fields.scalars)}.",
                "give one of them.",
            )


def to_yaml(settings: dict[str, Any]) -> str:
    """Settings as YAML, in the order of the tree."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=MAX_WIDTH)


def _features_of(
    fields: Fields, taken: frozenset[str], chosen: Sequence[str] | None
) -> dict[str, tuple[str, Any]]:
    """Features by name: path and declaration. chosen: their paths, None to guess them."""
    features: dict[str, tuple[str, Any]] = {}
    for path in fields.scalars if chosen is None else chosen:
        at = fields.scalars[path]
        if chosen is None and not _may_be_feature(path, at, fields, taken, len(features)):
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
            whole = at.count == fields.count
            features[name] = (path, kind if whole else kind | {"missing": missing})
    return features


def _may_be_feature(path: str, at: Seen, fields: Fields, taken: frozenset[str], have: int) -> bool:
    """Whether an unchosen field may be a feature: it is often there, and names nothing."""
    if path in taken or 2 * at.count < fields.count or have == MAX_FEATURES:
        return False
    # The first element of a list says nothing about the others.
    if is_technical(path) or fields.list_of(path) is not None:
        return False
    return not last_words(path) or last_words(path)[-1] not in CODES


def _kind_of(at: Seen) -> dict[str, Any] | None:
    """The kind of feature that the values at a path could be; None for none."""
    kinds = at.types.keys()
    if kinds == {"bool"}:
        return {"type": "bool"} if len(at.values) > 1 else None
    if kinds == {"list"}:
        widths = {len(v) for v in at.values}
        return {"vector": widths.pop()} if len(widths) == 1 else None
    # In a table numbers are text; codes such as 007 are none.
    if at.is_number and len(at.values) > 1:
        return {"type": "number"}
    # Text is a category if few values come again and again.
    texts = sorted(v for v in at.values if isinstance(v, str) and len(v) <= MAX_NAME)
    if kinds == {"str"} and 1 < len(at.values) <= MAX_CATEGORIES and 5 * len(texts) <= at.count:
        return {"categories": texts}
    return None


def _kind_of_few(at: Seen) -> dict[str, Any]:
    """The kind of a feature that a person chose, which too few values show."""
    if at.types.keys() <= {"int", "float"}:
        return {"type": "number"}
    return {"hash": HASH_WIDTH}


def _doubts_of_lists(fields: Fields, paths: Iterable[str]) -> list[str]:
    """Lists of which a mapping reads the first element only, and text that holds JSON."""
    doubts = {}
    for path in paths:
        if (found := fields.list_of(path)) is not None:
            name, of = found
            doubts[name] = (
                f"{name} has up to {of.longest} elements, only the first is read: "
                f"{of.elements - of.count} of {of.elements} are lost; send an event for each"
            )
    for path in fields.texts:
        doubts[path] = f"{path} holds JSON as text, so no path leads to the fields inside it"
    return list(doubts.values())


def _doubts_of_decimals(fields: Fields, paths: Sequence[str]) -> list[str]:
    """Keys that are the bytes of decimals: as text, or in an object with their scale."""
    doubts = []
    for path in paths:
        inside = path.removesuffix(".value")
        if inside != path and f"{inside}.scale" in fields.scalars:
            doubts.append(f"{inside} is a decimal as an object of scale and value: {WAY_OUT}")
        elif path in fields.scalars:
            doubts.append(doubt_of_decimals(path, fields.scalars[path].values) or "")
    return list(filter(None, doubts))


def _doubt_kinds(fields: Fields, mark: DeleteMark | None, doubts: list[str]) -> None:
    """Name the fields that may tell the kind of a record."""
    for path, at in fields.scalars.items():
        few = 1 < len(at.values) <= MAX_CATEGORIES and at.types.keys() == {"str"}
        noun = head_of(path)[0]
        is_kind = noun in KINDS or (not noun and last_words(path)[-1:] == ("name",))
        if mark is not None and path == mark.path:
            continue
        if few and at.count == fields.count and is_kind:
            values = ", ".join(
                sorted(v for v in at.values if len(v) <= MAX_NAME and v.isprintable())
            )
            doubts.append(
                f"{path} is one of {values}: if not all are edges, name them in "
                f"where: {{{path}: [..]}}"
            )
