"""Guesses a first mapping from a topic's records, with doubts about it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from streamd.decode.sources.paths import first_value, follow
from streamd.errors import SettingsError
from streamd.exchange.chosen_fields import (
    RECORD_TIME,
    Chosen,
    check_chosen,
    inside,
    with_first_elements,
)
from streamd.exchange.field_names import KINDS, head_of, last_words
from streamd.exchange.field_values import (
    MAX_NAME,
    Fields,
    fields_of_rows,
    no_rows,
    objects_of,
    unwrapped,
)
from streamd.exchange.guess_changes import DeleteMark, delete_rule, find_delete_mark
from streamd.exchange.guess_endpoints import doubts_of_endpoints, find_endpoints, source_paths
from streamd.exchange.guess_features import MAX_CATEGORIES, find_features, missing_value
from streamd.exchange.guess_numbers import doubts_of_commas, doubts_of_decimals
from streamd.exchange.guess_own import doubt_of_own_events
from streamd.exchange.guess_times import (
    FORMS,
    FoundTimes,
    find_time,
    form_of,
    take_envelope_time,
)
from streamd.schema import DEFAULT_SET
from streamd.settings.sources import steps_of

MAX_WIDTH = 100
"""Maximum columns of a line of a settings file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """A guessed mapping. tree: the settings. doubts: sentences. paths: all fields of the
    records."""

    tree: dict[str, Any]
    doubts: list[str]
    paths: list[str]

    @property
    def source(self) -> dict[str, Any]:
        """The first source among the settings."""
        return self.sources[0]

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The sources among the settings: several for a topic of several kinds of records."""
        found: list[dict[str, Any]] = self.tree["sources"]
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
    form: str = "",
) -> Guess:
    """Guess sources from records, those of Kafka or rows of a file.

    Args: now_us: wall clock, microseconds; edge_set: of the edges; chosen: known fields; form: the
    topic's format if it is known, and the records are decoded to JSON.
    Raises: SettingsError if no record can be read, or none has a chosen path.
    """
    doubts: list[str] = []
    objects, of_json = objects_of(records, doubts)
    envelope, rows = unwrapped(objects, records, doubts)
    source: dict[str, Any] = {"topic": topic}
    settings: dict[str, Any] = {}
    if edge_set != DEFAULT_SET:
        settings["graph"] = {"edge_sets": {edge_set: {}}}
        source["edge_set"] = edge_set
        doubts.append(f"edge set {edge_set} needs source and target if node sets are declared")
    if (form or of_json) != "json":
        source["format"] = form or of_json
    if envelope is not None:
        source["envelope"] = envelope
    if not rows:
        raise no_rows(topic, records, doubts)

    whole = fields_of_rows(rows)
    doubts += whole.doubts_of_names()
    mark = None if envelope == "debezium" else find_delete_mark(whole)
    of_whole: list[str] = []
    mapped = _map_rows(rows, mark, chosen, now_us, of_whole)
    sources, features = [mapped.source], mapped.features
    if envelope is None and (own := doubt_of_own_events(topic, rows, mapped.source["time"])):
        doubts.insert(0, own)

    # Records of several kinds have a source each, if no mapping fits all.
    kinds = None if chosen != Chosen() or mark is not None else _split_kinds(mapped, now_us)
    if kinds is not None:
        sources, features = kinds.sources, kinds.features
        doubts += kinds.doubts
    else:
        doubts += of_whole
        _doubt_kinds(mapped.fields, mark, doubts)
    if envelope == "debezium":
        doubts.append(_doubt_of_updates(mapped.source["fields"].get("time")))
    if features:
        settings["graph"] = {"edge_sets": {edge_set: {"features": features}}}
        doubts.append("features are fixed for the life of a log: leave out useless ones")
    if envelope == "cloudevents":
        take_envelope_time(objects, sources, doubts)
    tree = settings | {"sources": [source | one for one in sources]}
    return Guess(tree=tree, doubts=doubts, paths=list(mapped.fields.scalars))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """The guessed mapping of some rows. source: without topic and envelope. features: declarations
    by name. paths: of src, dst and time. is_sure: whether both endpoints were found by their
    names."""

    source: dict[str, Any]
    features: dict[str, Any]
    fields: Fields
    paths: list[tuple[str, ...]]
    is_sure: bool

    def fits(self, rows: list[dict[str, Any]]) -> bool:
        """Whether at least half of some rows have src, dst and time."""
        return all(
            2 * sum(_has_value(row, paths) for row in rows) >= len(rows) for paths in self.paths
        )


def _has_value(row: dict[str, Any], paths: tuple[str, ...]) -> bool:
    return first_value([follow(steps_of(path))(row) for path in paths]) is not None


def _map_rows(
    rows: list[dict[str, Any]],
    mark: DeleteMark | None,
    chosen: Chosen,
    now_us: int,
    doubts: list[str],
) -> Mapped:
    """Guess the form of times, the fields of edges, their features and the rule of deletes."""
    # Find deletes first: they may lack fields that all other records have.
    whole = fields_of_rows(rows)
    fields = fields_of_rows(_without_deletes(rows, mark)) if mark is not None else whole
    chosen = with_first_elements(chosen, fields)
    check_chosen(chosen, fields)

    # Times and the mark of deletes are neither keys nor features.
    times = _time_of(fields, chosen, now_us, doubts, mark is not None)
    taken = times.all | ({mark.path} if mark is not None else frozenset())
    ends = find_endpoints(fields, frozenset(taken), (chosen.src, chosen.dst))
    src = (ends.src,) if chosen.src else source_paths(fields, ends.src, frozenset(taken))
    paths = {"src": src, "dst": (ends.dst,)}
    if times.path:
        paths["time"] = (times.path,)
    doubts += doubts_of_endpoints(fields, ends, frozenset(taken | {*src}), src)
    doubts += doubts_of_decimals(fields, (ends.src, ends.dst)) + doubts_of_commas(fields)
    if len(src) > 1:
        doubts.append(
            f"src is the first of {', '.join(src)} that has a value: one person may be "
            "several nodes"
        )

    # If the destination or the source is in a list, each of its elements is an edge.
    found = fields.list_of(ends.dst) or fields.list_of(ends.src)
    each = found[0] if found is not None else ""
    of_ends = frozenset(taken | {*paths["src"], ends.dst})
    features = find_features(fields, of_ends, chosen.features, each, doubts)
    doubts += _doubts_of_lists(fields, [p for some in paths.values() for p in some], each)
    if each:
        doubts[:] = [doubt.replace(f"{each}.0.", f"{each}.") for doubt in doubts]

    mapped = _mapping(paths, {name: path for name, (path, _) in features.items()}, each)
    source: dict[str, Any] = {"time": times.form}
    if each:
        source["each"] = each
    if mark is not None:
        source["where"] = {mark.path: list(mark.kept)}
        # The rule of deletes is tested on rows, so its paths lead to the first element here.
        of_row = {name: some[-1] for name, some in paths.items()}
        if (rule := delete_rule(mark, of_row, whole, doubts)) is not None:
            of_edge = {name: inside(path, each) for name, path in rule["fields"].items()}
            source["deletes"] = rule | {"fields": of_edge}
    return Mapped(
        source=source | {"fields": mapped},
        features={name: kind for name, (_, kind) in features.items()},
        fields=fields,
        paths=list(paths.values()),
        is_sure=not ends.unsure and {ends.src, ends.dst} <= fields.scalars.keys(),
    )


def _mapping(
    paths: dict[str, tuple[str, ...]], features: dict[str, str], each: str
) -> dict[str, Any]:
    """The fields of edges; paths into the list `each` have no index."""
    mapped: dict[str, Any] = {}
    for name, some in paths.items():
        steps = [inside(path, each) for path in some]
        mapped[name] = steps if len(steps) > 1 else steps[0]
    if features:
        mapped["features"] = {name: inside(path, each) for name, path in features.items()}
    return mapped


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """Sources for the kinds of a topic's records, with the features of all."""

    sources: list[dict[str, Any]]
    features: dict[str, Any]
    doubts: list[str]


def _split_kinds(whole: Mapped, now_us: int) -> Kinds | None:
    """Map each kind of records to a source; None if one mapping fits all, or no kind has both
    ends."""
    named = list(_fields_of_kinds(whole.fields))
    for path in [*named, *(p for p in _fields_that_separate(whole.fields) if p not in named)]:
        value = follow(steps_of(path))
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in whole.fields.rows:
            groups.setdefault(value(row), []).append(row)
        if whole.is_sure and all(whole.fits(rows) for rows in groups.values()):
            continue
        if (kinds := _map_kinds(path, groups, now_us)) is not None:
            return kinds
    return None


def _map_kinds(path: str, groups: dict[str, list[dict[str, Any]]], now_us: int) -> Kinds | None:
    """Make sources by the values of a field, None if they would not help. groups: rows by value."""
    doubts: list[str] = []
    skipped: list[str] = []
    sources: list[dict[str, Any]] = []
    features: dict[str, Any] = {}
    for kind, rows in groups.items():
        of_kind: list[str] = []
        mapped = _map_rows(rows, None, Chosen(), now_us, of_kind)
        if not mapped.is_sure:
            skipped.append(kind)
            continue
        doubts += [f"{path} {kind}: {doubt}" for doubt in of_kind]
        # If two kinds declare a feature in different ways, leave it out of the second.
        of_fields = mapped.source["fields"].get("features", {})
        for name, declared in mapped.features.items():
            if _without_missing(features.setdefault(name, declared)) != _without_missing(declared):
                left = of_fields.pop(name)
                doubts.append(
                    f"{path} {kind}: left out of features, because its values differ from those of "
                    f"another kind: {left}"
                )
        if "features" in mapped.source["fields"] and not of_fields:
            del mapped.source["fields"]["features"]
        same = next((one for one in sources if _is_same(one, mapped.source)), None)
        if same is not None:
            same["where"][path].append(kind)
        else:
            sources.append({"where": {path: [kind]}} | mapped.source)
    if not sources or (len(sources) == 1 and not skipped):
        return None

    # Edges of a source lack the features of other sources.
    for name, declared in features.items():
        if not all(name in one["fields"].get("features", {}) for one in sources):
            features[name] = declared | {
                "missing": declared.get("missing", missing_value(declared))
            }
    doubts.append(
        f"{path} names the kind of a record: each kind has a source, and all make edges of one "
        "set; declare edge sets if they mean different things"
    )
    if skipped:
        doubts.append(
            f"{path} {', '.join(map(_printable, skipped))}: no two keys, so such records are "
            "skipped"
        )
    return Kinds(sources=sources, features=features, doubts=doubts)


def _without_missing(declared: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in declared.items() if name != "missing"}


def _is_same(source: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two sources differ only in their conditions."""
    return {k: v for k, v in source.items() if k != "where"} == other


def _doubt_of_updates(time: str | None) -> str:
    """A sentence on updates of rows. time: path of their times, None for those of the records."""
    late = "" if time is None else f" with its {time}, and one that comes late gets the newest time"
    return (
        f"each update of a row (op u) makes a further edge{late}; for first states only: where: "
        "{$envelope.op: [c, r, d]}"
    )


def _printable(value: str) -> str:
    """Text from a record for a doubt: shortened, and "?" if it has control characters."""
    return value[:MAX_NAME] if value.isprintable() else "?"


def _without_deletes(rows: list[dict[str, Any]], mark: DeleteMark) -> list[dict[str, Any]]:
    """The rows that a mark keeps, without deletes and truncates; all rows if it keeps none."""
    value = follow(steps_of(mark.path))
    return [row for row in rows if value(row) in mark.kept] or rows


def _time_of(
    fields: Fields, chosen: Chosen, now_us: int, doubts: list[str], are_changes: bool
) -> FoundTimes:
    """The chosen time, or else the likeliest. Raises: SettingsError if the chosen field is no
    time."""
    if not chosen.time:
        return find_time(fields, now_us, doubts, are_changes)
    found = find_time(fields, now_us, [])
    # Fields that look like times then stay unmapped, and do not become features either.
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


def to_yaml(settings: dict[str, Any]) -> str:
    """Write settings as YAML, in the order of the tree."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=MAX_WIDTH)


def _doubts_of_lists(fields: Fields, paths: Iterable[str], each: str) -> list[str]:
    """Sentences on the lists that a mapping reads, and on text that contains JSON. each: the list
    of edges, "" for none."""
    doubts = {}
    for path in paths:
        if (found := fields.list_of(path)) is not None:
            name, of = found
            doubts[name] = of.doubt(name, name == each)
    if fields.too_deep:
        doubts[""] = f"fields inside {fields.too_deep} are nested too deep to be looked at"
    for path in fields.texts:
        doubts[path] = f"{path} holds JSON as text: fields inside it are read as those of an object"
    return list(doubts.values())


def _fields_of_kinds(fields: Fields) -> Iterator[str]:
    """Yield the fields that may contain the kind of a record, by their names."""
    for path in _fields_of_few(fields):
        noun = head_of(path)[0]
        if noun in KINDS or (not noun and last_words(path)[-1:] == ("name",)):
            yield path


def _fields_of_few(fields: Fields) -> Iterator[str]:
    """Yield the fields of text that all records have, with few values."""
    for path, at in fields.scalars.items():
        few = 1 < len(at.values) <= MAX_CATEGORIES and at.types.keys() == {"str"}
        if few and at.count == fields.count:
            yield path


def _fields_that_separate(fields: Fields) -> Iterator[str]:
    """Yield the fields with few values that decide which other fields a record has: they may
    contain its kind under any name."""
    for path in _fields_of_few(fields):
        value = follow(steps_of(path))
        for other, at in fields.scalars.items():
            if at.count == fields.count:
                continue
            read = follow(steps_of(other))
            have = {value(row) for row in fields.rows if read(row) is not None}
            lack = {value(row) for row in fields.rows if read(row) is None}
            # Each value belongs to several records, or it would decide by chance.
            if have and lack and not have & lack and 2 * len(have | lack) <= fields.count:
                yield path
                break


def _doubt_kinds(fields: Fields, mark: DeleteMark | None, doubts: list[str]) -> None:
    """Add a doubt for each field that may contain the kind of a record."""
    for path in _fields_of_kinds(fields):
        if mark is not None and path == mark.path:
            continue
        values = sorted(
            v for v in fields.scalars[path].values if len(v) <= MAX_NAME and v.isprintable()
        )
        doubts.append(
            f"{path} is one of {', '.join(values)}: if not all are edges, name them in "
            f"where: {{{path}: [..]}}"
        )
