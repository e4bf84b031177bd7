"""Finds oddities in edges: placeholder keys, keys of very many edges, blanks around keys, copies of
edges, and two kinds of nodes with colliding ids."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64, Key, SetKey, split_key
from streamd.number_texts import count_noun

_WORDS = (
    *("nan", "null", "none", "undefined", "nil", "n/a", "#n/a", "nat", "unknown", "anonymous"),
    *("<na>", "<null>", "<none>", "(null)", "(none)", "(not set)", "[deleted]", "[removed]"),
    *("-", "--", "?", "-1", "\\n", "00000000-0000-0000-0000-000000000000"),
)
PLACEHOLDERS: frozenset[str | int] = frozenset(
    (
        *_WORDS,
        *map(str.upper, _WORDS),
        *map(str.capitalize, _WORDS),
        *("NaN", "NaT", -1),
    )
)
"""Keys that programs write if there is no user or item, in their usual spellings."""
HEAVY = 0.1
"""A key in more than this share of the edges is reported."""
TIMES_USUAL = 3.0
"""It must also have so many times the edges of the mean key of its side: with five categories each
has a fifth."""
MIN_EDGES = 50
"""Minimum number of edges for a share to be significant."""
MAX_HEAVY = 3
"""Maximum number of keys of a side that are reported for their share."""
SHARED = 0.9
"""Ids may collide if at least this share of the keys of the smaller side is on the other side
too."""
MIN_KEYS = 20
"""Minimum number of keys on each side for this evidence."""
FEW_BACK = 0.01
CHANCE = 1.5
MAX_DENSITY = 0.5
"""Reverse edges are rare if their share is at most FEW_BACK, or CHANCE times the share of all pairs
that have an edge; above MAX_DENSITY this is no evidence."""
MAX_BLANK_LOOKS = 10_000
"""Maximum number of keys that are checked for blanks."""
MANY_LATE = 0.1
"""Late edges are reported if they are more than this share."""
MAX_EDGES = 1_000_000
"""Maximum number of newest edges of a log to examine, which bounds time (about a second) and
memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OddKey:
    """A key that may not be a node. role: source or destination. num: number of its edges."""

    key: str | int
    role: str
    num: int
    is_placeholder: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class OddKeys:
    """The oddities of some edges. copies: edges that are equal to another in source, destination,
    time and features. shared: share of keys on both sides if ids may collide, else 0. blank: a key
    with blanks around it, or "" if there is none. late: edges that came later than newer ones, so
    that the log has them at its newest time."""

    num_edges: int
    keys: tuple[OddKey, ...] = ()
    copies: int = 0
    shared: float = 0.0
    blank: str = ""
    late: int = 0

    @property
    def sentences(self) -> list[str]:
        """Each oddity in a sentence, with a remedy."""
        found = []
        for odd in self.keys:
            name = json.dumps(odd.key, ensure_ascii=False)
            share = f"{100 * odd.num / self.num_edges:.3g} %"
            drop = f"`drop_keys: [{name}]` in the source drops "
            what = (
                f"a placeholder, not a node; {drop}such events"
                if odd.is_placeholder
                else f"fine if it is popular; if it means that there is none, {drop}its events"
            )
            found.append(
                f"{name} is the {odd.role} of {odd.num:,} of "
                f"{count_noun(self.num_edges, 'edge')} ({share}): "
                f"{what}"
            )
        if self.blank:
            written, plain = (
                json.dumps(key, ensure_ascii=False) for key in (self.blank, self.blank.strip())
            )
            found.append(
                f"the key {written} has blanks around it, and is another node than {plain}: "
                "commands that read files remove blanks with --strip"
            )
        if self.copies:
            found.append(
                f"{self.copies:,} of {count_noun(self.num_edges, 'edge')} are exact copies of "
                "others, with the same source, destination, time and features"
            )
        if self.late > MANY_LATE * self.num_edges:
            found.append(
                f"{self.late:,} of {count_noun(self.num_edges, 'edge')} came late, after newer "
                "ones, and have the newest time of the log instead of their own: a file or topic "
                "sent twice?"
            )
        if self.shared:
            found.append(
                f"{self.shared:.0%} of the keys of one side are on the other side too, but few "
                "edges have a reverse edge: if user 7 and item 7 are two nodes, give each side a "
                "prefix or a node set"
            )
        return found


def odd_keys(
    src: Int64,
    dst: Int64,
    key_of: Callable[[int], Key | None],
    placeholders: Iterable[int],
    copies: int,
    one_kind: Bools,
) -> OddKeys:
    """The oddities of n edges; src and dst are int64[n] node numbers.

    Args: key_of: the key of a number, None for a deleted node; placeholders: numbers of the
    placeholder keys; copies: number of copies; one_kind: bool[n], whether both sides of an edge are
    of one node set.
    """
    # Report the placeholders of each side, and the heaviest of its other keys.
    known = np.fromiter(placeholders, np.int64)
    found: list[OddKey] = []
    for role, side in (("source", src), ("destination", dst)):
        nodes, num = np.unique(side, return_counts=True)
        is_known = np.isin(nodes, known)
        heavy = num > len(side) * max(HEAVY, TIMES_USUAL / max(len(nodes), 1))
        heavy &= (len(side) >= MIN_EDGES) & ~is_known
        most = np.flatnonzero(heavy)[np.argsort(-num[heavy], kind="stable")][:MAX_HEAVY]
        for at in (*np.flatnonzero(is_known).tolist(), *most.tolist()):
            if (key := key_of(int(nodes[at]))) is not None:
                plain = split_key(key)[1]
                found.append(
                    OddKey(
                        key=plain,
                        role=role,
                        num=int(num[at]),
                        is_placeholder=bool(is_known[at]),
                    )
                )
    shared = _shared_ids(src[one_kind], dst[one_kind], key_of)
    return OddKeys(
        num_edges=len(src),
        keys=tuple(found),
        copies=copies,
        shared=shared,
        blank=_blank_key(np.union1d(src, dst), key_of),
    )


def _blank_key(nodes: Int64, key_of: Callable[[int], Key | None]) -> str:
    """The first key with blanks around it, of MAX_BLANK_LOOKS nodes at most; empty if there is
    none."""
    # Check evenly spread nodes: if cells have blanks, most rows have them.
    for node in nodes[:: -(-len(nodes) // MAX_BLANK_LOOKS) or 1].tolist():
        key = key_of(node)
        plain = split_key(key)[1] if key is not None else 0
        if isinstance(plain, str) and plain != plain.strip():
            return plain
    return ""


def _shared_ids(src: Int64, dst: Int64, key_of: Callable[[int], Key | None]) -> float:
    """The share of keys on both sides if they are integers and few edges have a reverse edge, else
    0."""
    sources, targets = np.unique(src), np.unique(dst)
    both = np.intersect1d(sources, targets, assume_unique=True)
    smaller = min(len(sources), len(targets))
    if smaller < MIN_KEYS or len(both) < SHARED * smaller:
        return 0.0
    # Text of two kinds of nodes rarely collides, integers counted from 0 always do.
    some = [key_of(int(node)) for node in both[:: max(1, len(both) // 1000)]]
    plain = [split_key(key)[1] for key in some if key is not None]
    if not all(isinstance(key, int) or key.isdecimal() for key in plain):
        return 0.0
    # Among nodes of one kind, edges go both ways: look for the reverse of each pair.
    nodes = np.union1d(sources, targets)
    a, b = np.searchsorted(nodes, src), np.searchsorted(nodes, dst)
    pairs = np.unique(a * len(nodes) + b)
    back = np.unique(b * len(nodes) + a)
    density = len(pairs) / (len(sources) * len(targets))
    share_back = float(np.isin(pairs, back, assume_unique=True).mean())
    if density > MAX_DENSITY or share_back > max(FEW_BACK, CHANCE * density):
        return 0.0
    return len(both) / smaller


def count_copies(
    src: Int64, dst: Int64, time: Int64, features_of: Callable[[Int64], Float32]
) -> int:
    """The number of edges that are equal to an earlier one.

    features_of: the features of the edges at some indices, float32[m, D].
    """
    # Most edges differ in these three, so few features are read.
    rows = np.stack([time, src, dst], axis=1)
    order = np.lexsort((dst, src, time))
    same = (rows[order[1:]] == rows[order[:-1]]).all(axis=1)
    is_copied = np.zeros(len(rows), np.bool_)
    is_copied[1:] |= same
    is_copied[:-1] |= same
    at = order[is_copied]
    if not len(at):
        return 0
    whole = [rows[at].view(np.uint8), np.ascontiguousarray(features_of(at)).view(np.uint8)]
    distinct = np.unique(np.concatenate([w.reshape(len(at), -1) for w in whole], axis=1), axis=0)
    return len(at) - len(distinct)


def placeholder_ids(
    ids: Mapping[Key, int], num_node_sets: int, prefixes: Iterable[str] = ()
) -> list[int]:
    """The numbers of the keys of a table that are placeholders, also with the prefixes of
    sources."""
    # This takes a few look-ups for any number of keys.
    words = [*PLACEHOLDERS, *(f"{prefix}{word}" for prefix in prefixes for word in PLACEHOLDERS)]
    keys: list[Key] = [*words]
    keys += [SetKey(number, word) for number in range(1, num_node_sets) for word in words]
    return [ids[key] for key in keys if key in ids]


def odd_keys_in_log(
    log: LogReader, first: int = 0, prefixes: Iterable[str] = (), most: int = MAX_EDGES
) -> OddKeys:
    """The oddities of the newest edges of a log that are not deleted, from `first` on.

    most: maximum number of edges to examine.
    """
    # Take the newest of the edges from `first` on.
    end = log.num_edges
    first = max(first, log.first_edge, end - most)
    if first >= end:
        return OddKeys(num_edges=0)
    src, dst, time = log.edges(first, end)

    # Ids of two node sets cannot collide.
    schema = log.state.schema
    ends = [schema.ends_of(number) for number in range(schema.num_edge_sets)]
    one_kind = np.array([a == b for a, b in ends])[log.edge_sets(first, end)]
    # Leave out deleted edges.
    shown = np.flatnonzero(~log.deletions.hides(first, src, dst))
    src, dst, time = src[shown], dst[shown], time[shown]
    found = odd_keys(
        src,
        dst,
        log.keys.__getitem__,
        placeholder_ids(log.ids, schema.num_node_sets, prefixes),
        count_copies(src, dst, time, lambda at: log.features_of(first + shown[at])),
        one_kind[shown],
    )
    late, _ = log.original_times()
    return replace(found, late=int(np.isin(late, first + shown).sum()))
