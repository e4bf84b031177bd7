"""Guesses the fields of an edge's source and destination, from names and values."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.decode.sources.paths import first_value, follow
from streamd.eventlog.odd_keys import PLACEHOLDERS
from streamd.exchange.field_names import (
    ACTORS,
    ATTRIBUTES,
    DIRECTIONS,
    IDENTIFIERS,
    OBJECTS,
    SOURCES,
    TARGETS,
    all_words,
    head_of,
    is_measure,
    is_technical,
    last_words,
    rank_in,
)
from streamd.exchange.field_values import Fields, Seen
from streamd.exchange.guess_numbers import has_commas
from streamd.number_texts import count_noun
from streamd.settings.sources import steps_of

ENOUGH = 20
"""Minimum number of records in which a key that never repeats, or never changes, is noticed."""
FEW = 4
"""A field with at most so many distinct values is more likely the kind of a record than an
endpoint."""
LEAST = 3.0
"""Minimum rank of a field that is chosen by its name."""
WEAK = 6.0
"""Rank of the nouns that may mean anything, as object."""
KNOWN = frozenset(("user", "uid", "customer", "member", "login", "username"))
ANONYMOUS = frozenset(("anonymous", "visitor", "device", "cookie", "guest", "anon", "pseudo"))
"""Words for a person who is known, and for one who is not."""
SERIES = {"a": ("c",), "1": ("0", "3")}
"""Words of a direction, with those that make it one of a series of columns."""
MAX_OTHERS = 3
"""Maximum number of other fields that a doubt lists."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The guessed endpoints.

    src, dst: paths. directed: their names differ only by the direction, as src_ip and dst_ip, so
    both have keys of one kind. unsure: the roles (src, dst) that were guessed without the names of
    fields.
    """

    src: str
    dst: str
    directed: bool
    unsure: tuple[str, ...]

    @property
    def named(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Each role with its path."""
        return ("src", self.src), ("dst", self.dst)


def find_endpoints(fields: Fields, taken: frozenset[str], chosen: tuple[str, str]) -> Endpoints:
    """Find the paths of source and destination; REPLACE_src or REPLACE_dst if no field fits.

    Args: taken: paths of times and of the mark of deletes; chosen: known paths of the two, "" for
    unknown.
    """
    keys = _candidates(fields, taken)
    # Two names that differ only by a direction are better evidence than any noun.
    if not any(chosen) and (pair := _directed_pair(keys, fields)):
        return Endpoints(*pair, True, ())
    ends: list[str] = list(chosen)
    unsure = []
    # Choose the role with the higher rank first, because one field cannot be both.
    ranks = {
        role: {path: _rank(role, path, at, fields) for path, at in keys.items()}
        for role in ("src", "dst")
    }
    order = sorted(
        (role for role, path in zip(("src", "dst"), chosen, strict=True) if not path),
        key=lambda role: -max(ranks[role].values(), default=0),
    )
    for role in order:
        at = ("src", "dst").index(role)
        free = [path for path in keys if path not in ends]
        best = max(free, key=lambda path: ranks[role][path], default="")
        if best and ranks[role][best] >= LEAST:
            ends[at] = best
            continue
        ends[at] = _by_values(keys, free, fields) or f"REPLACE_{role}"
        unsure.append(role)
    return Endpoints(ends[0], ends[1], False, tuple(unsure))


def _candidates(fields: Fields, taken: frozenset[str]) -> dict[str, Seen]:
    """The fields that may be keys: text or integers in at least half of the records, and neither
    times, measures, decimals with a comma nor fields of a tool."""
    return {
        path: at
        for path, at in fields.scalars.items()
        if path not in taken
        and at.types.keys() <= {"int", "str"}
        and 2 * at.count >= fields.count
        and not (at.is_fraction and last_words(path)[-1:] != ("id",))
        and not (at.is_long_text or path in fields.texts or has_commas(at))
        and not (is_technical(path) or at.is_number and is_measure(path))
    }


def _directed_pair(keys: dict[str, Seen], fields: Fields) -> tuple[str, str] | None:
    """Find the most likely pair of fields with names that differ only by their direction."""
    by_words: dict[tuple[str, ...], list[str]] = {}
    for path in keys:
        by_words.setdefault(all_words(path), []).append(path)
    found: list[tuple[float, str, str]] = []
    for words, paths in by_words.items():
        for src, dst in DIRECTIONS:
            if src not in words:
                continue
            # Numbered columns of features, as f1, f2 and f3, have no direction.
            if any(_with_word(words, src, one) in by_words for one in SERIES.get(src, ())):
                continue
            wanted = _with_word(words, src, dst)
            for path in paths:
                found += [
                    (_pair_rank(path, keys[path], src, fields) - extra, path, other)
                    for others, extra in _of_words(by_words, wanted)
                    for other in others
                    if other != path
                ]
        # If a name occurs twice in a table, tools such as pandas add .1 to the second.
        for path in paths:
            if (other := f"{path}\\.1") in keys:
                found.append((_pair_rank(path, keys[path], "", fields), path, other))
    rank, src, dst = max(found, default=(0.0, "", ""))
    return (src, dst) if rank > 0 else None


def _with_word(words: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if word == old else word for word in words)


def _of_words(
    by_words: dict[tuple[str, ...], list[str]], wanted: tuple[str, ...]
) -> list[tuple[list[str], float]]:
    """The paths with exactly these words, or with one more word, which are less likely. Returns:
    paths, and the reduction of their rank."""
    found = [(by_words[wanted], 0.0)] if wanted in by_words else []
    if len(wanted) > 1:
        for words, paths in by_words.items():
            longer = len(words) == len(wanted) + 1
            if longer and any(words[:i] + words[i + 1 :] == wanted for i in range(len(words))):
                found.append((paths, 0.5))
    return found


def _pair_rank(path: str, at: Seen, direction: str, fields: Fields) -> float:
    """Rank a field of a pair as a key."""
    other = [word for word in all_words(path) if word != direction]
    rank = 5.0 + 2.0 * any(word in IDENTIFIERS for word in other)
    rank += 0.1 * max((rank_in(ACTORS, word) for word in other), default=0.0)
    rank -= 4.0 * any(word in ATTRIBUTES or word == "type" for word in other)
    # One letter or digit means a direction only next to other words.
    rank -= 6.0 * (len(direction) == 1 and not other)
    return rank + _value_rank(path, at, fields)


def _rank(role: str, path: str, at: Seen, fields: Fields) -> float:
    """Rank a field as the source or as the destination; 0 if its name is no evidence."""
    words = all_words(path)
    noun, step = head_of(path)
    is_src = role == "src"
    tables = ACTORS if is_src else OBJECTS
    towards, against = (SOURCES, TARGETS) if is_src else (TARGETS, SOURCES)
    rank = rank_in(tables, noun)
    if not rank:
        # The word for the notation may be a noun itself, as uri or ip.
        rank = 0.5 * max((rank_in(tables, word) for word in last_words(path)[-1:]), default=0.0)
    # An id inside an object identifies the object, as user.accountId.
    last = last_words(path)[-1:]
    is_id = bool(last) and last[0] in IDENTIFIERS
    if rank and is_id:
        rank = max(rank, *(rank_in(tables, word) - 0.5 for word in words[-3:]))
    if any(word in towards for word in step):
        rank = max(rank, 7.0) + 1.0
    # A word for the other direction outweighs any noun.
    rank -= 6.0 * any(word in against for word in words)
    # An attribute of an endpoint is not the endpoint; ids are better keys than names.
    if noun in ATTRIBUTES:
        rank -= 8.0
    rank += 0.5 * is_id - 0.5 * (last == ("name",))
    rank -= 0.3 * (len(words) > 3) + 0.1 * path.count(".")
    return rank + _value_rank(path, at, fields) if rank > 0 else 0.0


def _value_rank(path: str, at: Seen, fields: Fields) -> float:
    """The penalty, at most 0, for values that are unlikely keys: absent, constant, few, or never
    repeated."""
    distinct = len(at.values)
    rank = -2.0 * (1 - at.count / max(fields.count, 1))
    rank -= 4.0 * is_constant(at)
    if at.count >= 2 * FEW:
        rank -= 2.0 * (1 < distinct <= FEW)
    if distinct == at.count >= ENOUGH:
        # Ids of records never repeat, and a weak noun more likely names a record than an endpoint.
        noun = head_of(path)[0]
        is_plain = noun == "uid" or max(rank_in(ACTORS, noun), rank_in(OBJECTS, noun)) <= WEAK
        rank -= 8.0 if is_plain else 3.0
    return rank


def _by_values(keys: dict[str, Seen], free: list[str], fields: Fields) -> str:
    """The field with the values most like keys, "" if there is none: first ids that repeat, then
    other keys that repeat, then any text or id."""
    usable = [
        path
        for path in free
        if len(keys[path].values) > 1
        and head_of(path)[0] not in ATTRIBUTES
        and not _is_pair_of_list(path, fields)
    ]
    again = [p for p in usable if FEW < len(keys[p].values) < keys[p].count]
    ids = [p for p in again if last_words(p)[-1:] and last_words(p)[-1] in IDENTIFIERS]
    # Integers that hardly repeat are more likely counts, unless the name means ids.
    keyish = [p for p in again if not _may_be_count(p, keys[p])]
    named = [p for p in usable if not is_counted(p, keys[p])]
    likely = ids or keyish or named
    return max(likely, key=lambda p: len(keys[p].values), default="")


def _is_pair_of_list(path: str, fields: Fields) -> bool:
    """Whether a field is in a list of names and values, so that its first element may be any of
    them."""
    found = fields.list_of(path)
    return found is not None and bool(
        {f"{found[0]}.0.key", f"{found[0]}.0.name"} & {*fields.scalars}
    )


def _may_be_count(path: str, at: Seen) -> bool:
    return is_counted(path, at) and 2 * len(at.values) > at.count


def is_counted(path: str, at: Seen) -> bool:
    """Whether a field contains numbers and its name means no id, so that it may count something."""
    words = last_words(path)
    return at.is_number and not any(word in IDENTIFIERS or word == "ids" for word in words)


def source_paths(fields: Fields, src: str, taken: frozenset[str]) -> tuple[str, ...]:
    """The paths of the source. If the chosen one has anonymous persons, or known persons only in
    some records, a field of the other kind is added; that of known persons comes first.

    src: the chosen source. taken: paths of times and of the mark of deletes.
    """
    words = frozenset(last_words(src)) if src in fields.scalars else frozenset()
    is_anonymous = bool(ANONYMOUS & words)
    if not is_anonymous and not (KNOWN & words and fields.missing(src)):
        return (src,)
    other = next(
        (
            path
            for path, at in fields.scalars.items()
            if path not in taken
            and steps_of(path)[:-1] == steps_of(src)[:-1]
            and at.types.keys() <= {"int", "str"}
            and (KNOWN | ANONYMOUS | IDENTIFIERS).intersection(last_words(path)[-1:])
            and bool(ANONYMOUS.intersection(last_words(path))) != is_anonymous
            and (KNOWN | ANONYMOUS).intersection(last_words(path))
            and not is_constant(at)
        ),
        None,
    )
    if other is None:
        return (src,)
    return (other, src) if is_anonymous else (src, other)


def doubts_of_endpoints(
    fields: Fields, ends: Endpoints, times: frozenset[str], src: Sequence[str]
) -> list[str]:
    """Sentences on everything doubtful about source and destination. src: all paths of the
    source."""
    doubts = []
    paths = {"src": src, "dst": (ends.dst,)}
    for role, path in ends.named:
        if path not in fields.scalars:
            doubts.append(
                f"no field looks like {role}: name one, or there is no second key in these records"
            )
            continue
        if role in ends.unsure:
            doubts.append(f"{role} is {path} only because its values look like keys")
        if missing := fields.missing(path):
            sentence = f"{path} ({role}) is missing in {missing} of {fields.count} records"
            doubts.append(sentence + _way_out_of_missing(role, paths[role], fields))
        doubts += _doubts_of_key(role, path, fields)
        if others := _alternatives(role, path, fields, ends, times):
            doubts.append(f"{role} may also be {', '.join(others)}")
    if not ends.directed and ends.src in fields.scalars and ends.dst in fields.scalars:
        doubts.append(
            f"if a key means one thing as {ends.src} and another as {ends.dst}, such as user 7 and "
            'item 7, give each a prefix: {path: .., prefix: "user:"}'
        )
    return doubts


def _way_out_of_missing(role: str, paths: Sequence[str], fields: Fields) -> str:
    """The end of a doubt about records without a key: how to drop them; "" if another path has a
    key, or the key is in a list."""
    # A record without the list of events has no event, and is no dead letter.
    walks = [follow(steps_of(path)) for path in paths]
    has_all = all(first_value([walk(row) for walk in walks]) is not None for row in fields.rows)
    if has_all or any(fields.list_of(path) for path in paths):
        return ""
    path = paths[0] if len(paths) == 1 else f"[{', '.join(paths)}]"
    return (
        f": such records become dead letters; to drop them, write {role}: {{path: {path}, default: "
        "anonymous} and drop_keys: [anonymous]"
    )


def _doubts_of_key(role: str, path: str, fields: Fields) -> list[str]:
    """Sentences on everything doubtful about the values of a key."""
    at = fields.scalars[path]
    doubts = []
    if at.count >= ENOUGH and len(at.values) == 1:
        doubts.append(f"{path} ({role}) is the same in all records: nothing can be ranked by it")
    if len(at.values) == at.count >= ENOUGH:
        doubts.append(
            f"{path} ({role}) differs in every record: nothing can be learned of a key that never "
            "repeats"
        )
    if is_counted(path, at) and at.types.keys() == {"int"} and 2 * len(at.values) > at.count > FEW:
        head = head_of(path)[0]
        if not rank_in(ACTORS, head) and not rank_in(OBJECTS, head):
            doubts.append(f"{path} ({role}) may be a count or a measure, not a key")
    for value in sorted(PLACEHOLDERS.intersection(at.values), key=str):
        doubts.append(
            f"{path} ({role}) is {value!r} in {at.values[value]} of {at.count} records: a "
            "placeholder, no node; `drop_keys` in the source drops such events"
        )
    if {"int", "str"} <= at.types.keys():
        doubts.append(
            f'{path} ({role}) is text in some records and an integer in others: 7 and "7" are two '
            "nodes"
        )
    return doubts


def _alternatives(
    role: str, path: str, fields: Fields, ends: Endpoints, times: frozenset[str]
) -> list[str]:
    """Other fields that are almost as likely as the chosen one by their names and values, best
    first."""
    taken = {ends.src, ends.dst} | times
    chosen = fields.scalars[path]
    least = _rank(role, path, chosen, fields) - 3.0 if not ends.directed else 8.0
    # Any key that repeats is better than one that never does.
    if len(chosen.values) == chosen.count >= ENOUGH:
        least = LEAST
    found = []
    for other, at in fields.scalars.items():
        if (
            other in taken
            or not at.types.keys() <= {"int", "str"}
            or (at.is_number and is_measure(other))
        ):
            continue
        if is_technical(other) or at.is_long_text or at.is_fraction or is_constant(at):
            continue
        if has_commas(at):
            continue
        # Rank a field as if all records had it.
        lacking = 2.0 * (1 - at.count / fields.count)
        rank = _rank(role, other, at, fields)
        if rank and rank + lacking >= least:
            found.append((-rank, other))
    return [
        other + (f" (missing in {count_noun(missing, 'record')})" if missing else "")
        for _, other in sorted(found)[:MAX_OTHERS]
        for missing in (fields.missing(other),)
    ]


def is_constant(at: Seen) -> bool:
    """Whether a field has one value in so many records that it cannot be a key."""
    return len(at.values) == 1 and at.count >= 2 * FEW
