"""Print the records of a file: graphs, `tf.train.Example` of any kind, and rows of tables.

The file is not trusted: the size of a record is limited before it is parsed, and only some of its
keys, items and values are printed. Lines may hold control characters, which the printer escapes.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from streamd.errors import TFGNNError
from streamd.number_texts import count_noun
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import read_blocks
from streamd.tfgnn.records.shards import find_files, is_csv
from streamd.tfgnn.records.tensor import GraphTensor, Nodes, Ragged, Values, by_row
from streamd.tfgnn.schema.messages import Example, GraphSchema, parse_binary
from streamd.tfgnn.schema.schema import all_sets
from streamd.tfgnn.tables.reading import Set, csv_reader, read_table

MAX_BYTES = 32 << 20
"""Bytes of the longest record shown: parsed as integers it takes eight times as much memory."""
MAX_KEYS = 200
"""Maximum of keys of a record, features of an item or columns of a row shown."""
MAX_TEXT = 60
"""Maximum of characters of a string shown."""
_PLAIN = re.compile(r"[\w#./:+-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The part of a file to show. skip: records before it. count: records shown. values: maximum
    of items of a set, and of values of a feature."""

    skip: int = 0
    count: int = 3
    values: int = 8


def lines_of(
    path: Path, part: Part, schema: GraphSchema | None = None, set_name: str | None = None
) -> Iterator[str]:
    """Yield the lines of a file, a glob or base@N.

    schema: of the graphs, or of a table's set; without it keys and columns are shown unparsed.
    set_name: the set whose table it is. Raises: TFGNNError, after the lines before the error.
    """
    found = 0
    # The lines of skipped records are never computed.
    for item in islice(_items(path, part, schema, set_name), part.skip, part.skip + part.count):
        found += 1
        yield from item
    if not found:
        yield f"{path}: there are no records after the first {part.skip:,}"


def _items(
    path: Path, part: Part, schema: GraphSchema | None, set_name: str | None
) -> Iterator[Iterable[str]]:
    """Yield the lines of each record, computed lazily."""
    if schema is not None and set_name is not None:
        return _table_rows(path, part, _set_of(schema, set_name))
    if not is_csv(path):
        return _records(path, part, None if schema is None else Codec(schema))
    if schema is not None:
        raise TFGNNError(f"{path} is a table.", "name its set of the schema by --set.")
    return _csv_rows(path)


def _set_of(schema: GraphSchema, name: str) -> Set:
    """A set of a schema by its name, as nodes/NAME or edges/NAME if both have it. Raises:
    TFGNNError."""
    kinds = {"node set": "nodes/", "edge set": "edges/", "context": "context"}
    sets = {f"{kinds[kind]}{its}": one for kind, its, one in all_sets(schema)}
    # A name with its kind, or a name that only one set has.
    found = {k: one for k, one in sets.items() if name in (k, k.partition("/")[2])}
    if len(found) != 1:
        names = ", ".join(list(found or sets)[:20])
        words = "several sets" if found else "no set"
        raise TFGNNError(f"The schema has {words} {name!r}: {names}.", "name one of these.")
    (one,) = found.values()
    return one


def _records(path: Path, part: Part, codec: Codec | None) -> Iterator[Iterable[str]]:
    """Yield the lines of each record of TFRecord files."""
    for file in find_files(path):
        for block in read_blocks(file, max_bytes=MAX_BYTES):
            for r, (a, b) in enumerate(
                zip(block.start_R.tolist(), block.end_R.tolist(), strict=True)
            ):
                yield _record(block.data, a, b, f"{file} record {block.first + r}", part, codec)


def _record(
    data: bytes, start: int, end: int, where: str, part: Part, codec: Codec | None
) -> Iterator[str]:
    """Yield the lines of a record. Raises: TFGNNError."""
    record = data[start:end]
    yield f"{where}: {count_noun(len(record), 'byte')}"
    if codec is None:
        yield from _example(record, where, part)
        return
    graph = codec.decode(record, where)
    yield from _graph(graph, codec.schema, part)
    # A row of a table decodes to a graph without nodes and edges: explain why nothing is shown.
    sizes = [one.sizes_C for one in graph.node_sets.values()]
    sizes += [one.sizes_C for one in graph.edge_sets.values()]
    if not any(int(sizes_C.sum()) for sizes_C in sizes):
        keys = list(parse_binary(Example, record, where).features.feature)
        if keys and not any(key.startswith(("context/", "nodes/", "edges/")) for key in keys):
            yield "  it has no key of a graph; if it is a row of a table, name its set by --set"


def _example(record: bytes, where: str, part: Part) -> Iterator[str]:
    """Yield a line for each key of a record: the kind of its list, the number of values, the first.
    Raises: TFGNNError."""
    features = parse_binary(Example, record, where).features.feature
    keys = sorted(features)
    for key in keys[:MAX_KEYS]:
        kind = features[key].WhichOneof("kind")
        values = getattr(features[key], kind).value if kind is not None else ()
        shown = _some(values[: part.values], len(values), part.values)
        num = f"{len(values):,} {(kind or '').removesuffix('_list')}".rstrip()
        yield f"  {_text(key)}: {num}: {shown}".rstrip()
    if len(keys) > MAX_KEYS:
        yield f" {_more(len(keys), MAX_KEYS)} keys"


def _graph(graph: GraphTensor, schema: GraphSchema, part: Part) -> Iterator[str]:
    """Yield the lines of a graph: each set with its size, and its first items with features."""
    if graph.context:
        yield "  context"
        # Every set has one size per component; a graph without node sets has one component.
        num = next((len(one.sizes_C) for one in graph.node_sets.values()), 1)
        yield from _set_items(graph.context, num, part, [""] * min(num, part.values))
    for name, nodes in graph.node_sets.items():
        yield f"  node set {_text(name)}: {_size(nodes.sizes_C, 'node')}"
        yield from _set_items(nodes.features, nodes.num, part, [""] * min(nodes.num, part.values))
    for name, edges in graph.edge_sets.items():
        one = schema.edge_sets[name]
        ends = f"{_text(one.source)} to {_text(one.target)}"
        yield f"  edge set {_text(name)}, {ends}: {_size(edges.sizes_C, 'edge')}"
        sources = _ends(graph.node_sets[one.source], edges.source_E[: part.values])
        targets = _ends(graph.node_sets[one.target], edges.target_E[: part.values])
        pairs = [f"{source} -> {target} " for source, target in zip(sources, targets, strict=True)]
        yield from _set_items(edges.features, len(edges.source_E), part, pairs)


def _set_items(features: Values, num: int, part: Part, starts: list[str]) -> Iterator[str]:
    """Yield a line for each of the first items of a set. starts: prefix of each line."""
    if not features and not any(starts):
        return
    shown = _values_of(features, part)
    for i, start in enumerate(starts):
        yield f"    {i}: {start}{shown(i)}".rstrip()
    if num > len(starts):
        yield f"    and {num - len(starts):,} more"


def _size(sizes_C: Any, noun: str) -> str:
    """The size of a set as text, with the size of each component if there are several."""
    sizes = sizes_C.tolist()
    each = f" ({', '.join(f'{n:,}' for n in sizes[:MAX_KEYS])})" if len(sizes) > 1 else ""
    return f"{count_noun(sum(sizes), noun)}{each}"


def _ends(nodes: Nodes, index: Any) -> list[str]:
    """Endpoints of edges as text: indices of nodes, with their ids if they have any."""
    ids = nodes.features.get("#id")
    if not isinstance(ids, np.ndarray) or ids.dtype != object or ids.ndim != 1:
        return [str(i) for i in index.tolist()]
    return [f"{i} {_text(ids[i])}" for i in index.tolist()]


def _table_rows(path: Path, part: Part, one: Set) -> Iterator[Iterable[str]]:
    """Yield the line of each row of a set's table."""
    for rows in read_table(one, path, at_once=part.count, max_bytes=MAX_BYTES):
        own = {"#id": rows.ids, "#weight": rows.weight, "#time": rows.time}
        # A column of weights or times that the schema declares is a feature.
        own = {n: v for n, v in own.items() if n.lstrip("#") not in rows.features}
        columns = {n: v for n, v in {**own, **rows.others}.items() if v is not None}
        shown = _values_of({**columns, **rows.features}, part)
        for r in range(rows.num):
            ends = ""
            if rows.source is not None and rows.target is not None:
                ends = f"{_text(rows.source[r])} -> {_text(rows.target[r])} "
            yield [f"{rows.location(r)}: {ends}{shown(r)}".rstrip()]


def _csv_rows(path: Path) -> Iterator[Iterable[str]]:
    """Yield the line of each row of a table of CSV."""
    for file in find_files(path):
        with ExitStack() as stack:
            reader = csv_reader(file, stack)
            header = next(reader, [])
            for number, cells in enumerate(reader, 1):
                if len(cells) != len(header):
                    raise TFGNNError(
                        f"{file} row {number} has {len(cells)} cells, the header {len(header)}.",
                        "correct the row.",
                    )
                pairs = list(zip(header, cells, strict=True))
                words = " ".join(f"{_text(n)}={_text(cell)}" for n, cell in pairs[:MAX_KEYS])
                yield [f"{file} row {number}: {words}{_more(len(pairs), MAX_KEYS)}"]


def _values_of(features: Values, part: Part) -> Callable[[int], str]:
    """A function that formats the features of an item."""
    getters = [
        (_text(name), by_row(value), isinstance(value, Ragged) or value.ndim > 1)
        for name, value in islice(features.items(), MAX_KEYS)
    ]

    def words(item: int) -> str:
        found = []
        for name, get, is_list in getters:
            flat = get(item)
            value = _some(flat[: part.values].tolist(), len(flat), part.values)
            found.append(f"{name}={f'[{value}]' if is_list else value}")
        return " ".join(found) + _more(len(features), MAX_KEYS)

    return words


def _some(values: Iterable[Any], num: int, most: int) -> str:
    """The first values as text, and the number of further ones."""
    return " ".join(map(_text, values)) + _more(num, most)


def _more(num: int, most: int) -> str:
    return f" and {num - most:,} more" if num > most else ""


def _text(value: Any) -> str:
    """A value as text: a string is plain if it is one word, otherwise quoted as in JSON."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, (bytes, str)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    # A UTF-8 character has at most four bytes.
    start = value[: 4 * MAX_TEXT]
    text = start.decode(errors="backslashreplace") if isinstance(start, bytes) else start
    if _PLAIN.fullmatch(text) and len(value) <= MAX_TEXT:
        return text
    unit = "bytes" if isinstance(value, bytes) else "characters"
    more = f"... ({len(value):,} {unit})" if len(text) > MAX_TEXT or len(start) < len(value) else ""
    return json.dumps(text[:MAX_TEXT], ensure_ascii=False) + more
