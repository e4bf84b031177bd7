"""Plain references: a record decoded by protobuf and lists alone, and the frames of a TFRecord file."""

import struct

from streamd.tfgnn.records.records import masked_crc
from streamd.tfgnn.schema.messages import Example, GraphSchema
from streamd.tfgnn.schema.schema import dtype_of, ragged_dims, shape_of

MAX_ITEMS = 2**40
MAX_ABSENT_ROWS = 2**20


class Refused(Exception):
    """When the rules refuse a record."""


def frames(data: bytes):
    """The records of a file, and the byte where it is damaged or None."""
    at, found = 0, []
    while at < len(data):
        head = data[at : at + 12]
        if len(head) < 12 or masked_crc(head[:8]) != struct.unpack("<I", head[8:])[0]:
            return found, at
        size, = struct.unpack("<Q", head[:8])
        record, tail = data[at + 12 : at + 12 + size], data[at + 12 + size : at + 16 + size]
        if len(tail) < 4 or masked_crc(record) != struct.unpack("<I", tail)[0]:
            return found, at
        found.append(record)
        at += 16 + size
    return found, None


def decode(record: bytes, schema: GraphSchema, prefix: str = ""):
    """{part: value}, values as flat lists with row lengths. Raises: Refused."""
    example = Example()
    try:
        example.ParseFromString(record)
    except Exception as error:
        raise Refused from error
    have = example.features.feature

    def flat(key, kind):
        key = prefix + key
        if key not in have:
            return []
        one = have[key].WhichOneof("kind")
        values = list(getattr(have[key], one).value) if one else []
        if values and one != f"{kind}_list":
            raise Refused(key)
        return values

    out = {}
    sizes = {}
    for start, sets in (("nodes", schema.node_sets), ("edges", schema.edge_sets)):
        for name in sets:
            sizes[start, name] = flat(f"{start}/{name}.#size", "int64")
    counts = {len(s) for s in sizes.values() if s}
    if len(counts) > 1:
        raise Refused("components")
    components = counts.pop() if counts else 1
    for key, s in sizes.items():
        sizes[key] = s = s or [0] * components
        if min(s) < 0 or sum(s) > MAX_ITEMS:
            raise Refused(key)
        out[f"{key[0]}/{key[1]}.#size"] = s
    for name, one in schema.edge_sets.items():
        num = sum(sizes["edges", name])
        for end, at in (("source", one.source), ("target", one.target)):
            index = flat(f"edges/{name}.#{end}", "int64")
            if len(index) != num or any(not 0 <= i < sum(sizes["nodes", at]) for i in index):
                raise Refused(end)
            out[f"edges/{name}.#{end}"] = index
    groups = [("context/", schema.context.features, components)]
    groups += [(f"nodes/{n}.", s.features, sum(sizes["nodes", n])) for n, s in schema.node_sets.items()]
    groups += [(f"edges/{n}.", s.features, sum(sizes["edges", n])) for n, s in schema.edge_sets.items()]
    for start, features, num in groups:
        for name, feature in features.items():
            out[start + name] = _feature(flat, start + name, feature, num)
    return out


def _feature(flat, key, feature, num):
    values = flat(key, dtype_of(feature).wire)
    lengths = [flat(f"{key}.d{dim}", "int64") for dim in ragged_dims(shape_of(feature))]
    is_absent = bool(lengths) and not values and not any(lengths)
    rows, told = num, iter(range(len(lengths)))
    for size in shape_of(feature):
        if size is not None:
            rows *= size
            continue
        i = next(told)
        if is_absent:
            if rows > MAX_ABSENT_ROWS:
                raise Refused(key)
            lengths[i] = [0] * rows
        if len(lengths[i]) != rows or any(length < 0 for length in lengths[i]):
            raise Refused(key)
        if rows and max(lengths[i]) * rows > MAX_ITEMS:
            raise Refused(key)
        rows = sum(lengths[i])
    if len(values) != rows:
        raise Refused(key)
    if dtype_of(feature).wire == "int64":
        values = [_integer(v, dtype_of(feature).name) for v in values]
    return values, lengths


def _integer(value, name):
    if name == "DT_BOOL":
        if value not in (0, 1):
            raise Refused(name)
        return value == 1
    bits = int(name.lstrip("DT_UIN"))
    if name == "DT_UINT64":
        return value % 2**64
    low, high = (0, 2**bits) if name.startswith("DT_U") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= value < high:
        raise Refused(name)
    return value


def of_graph(graph):
    """What `decode` gives, of a decoded graph."""
    out = {}

    def features(start, of):
        for name, value in of.items():
            ragged = hasattr(value, "row_lengths")
            values = (value.values if ragged else value).reshape(-1).tolist()
            out[start + name] = values, [one.tolist() for one in value.row_lengths] if ragged else []

    features("context/", graph.context)
    for (start, sets) in (("nodes", graph.node_sets), ("edges", graph.edge_sets)):
        for name, one in sets.items():
            out[f"{start}/{name}.#size"] = one.sizes_C.tolist()
            features(f"{start}/{name}.", one.features)
            if start == "edges":
                out[f"edges/{name}.#source"] = one.source_E.tolist()
                out[f"edges/{name}.#target"] = one.target_E.tolist()
    return out


def same(a, b):
    """Whether two decoded records are equal; NaN equals itself."""
    return a.keys() == b.keys() and all(repr(x) == repr(y) or _close(x, y) for x, y in ((a[k], b[k]) for k in a))


def _close(x, y):
    # Narrow floats were rounded on one side only.
    if not isinstance(x, tuple) or x[1] != y[1] or len(x[0]) != len(y[0]):
        return False
    return all(p == q or (p != p and q != q) or (isinstance(p, float) and abs(p - q) <= 1e-3 * abs(q)) or
               (isinstance(p, float) and abs(p) == float("inf") and abs(q) >= 65504) for p, q in zip(x[0], y[0], strict=True))


