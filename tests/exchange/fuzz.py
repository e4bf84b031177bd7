"""Hostile rows through all readers. Run as a program, it reads as many rows as asked: `python -m tests.exchange.fuzz 1000000 [seed]`.

Columns of odd types and values are written in every format that has them, and each reader's events are compared with a plain reference
of docs/types.md. Then bytes of the files are changed: reading them ends in rows or in an error that names the file, and in nothing else.
"""

import datetime
import decimal
import gzip
import json
import math
import random
import re
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog
from crc32c import crc32c

from streamd.clock import SystemClock
from streamd.decode.decoder import make_decoder
from streamd.errors import SettingsError
from streamd.exchange.event_files import EventFile
from streamd.exchange.load import FileRow
from streamd.exchange.sourced import read_rows, rows_of_sources
from streamd.exchange.tables import Columns, read_events, resolved
from streamd.exchange.text_files import TextForm
from streamd.exchange.times import Times
from streamd.ingest.dead_letters.sinks import REASONS
from streamd.settings.loading import load_settings, schema_of
from tests.builders import Record
from tests.decode.ngrams_reference import numbers_of_text
from tests.decode.registry import F, Registry
from tests.exchange.readers import NOW, Typed, stream_of, table_of, values_of, write

MOST_ROWS = 40
MAX_FEATURE = 1e15
INTEGERS = [0, 1, -1, 2, 7, 5, 2**31, 2**53 - 1, 2**53 + 1, 2**63 - 1, -(2**63) + 1]
FLOATS = [0.0, -0.0, 1.0, 1.5, -2.0, 7.0, 1e15, 1.1e15, 1e308, 2.0**53, 2.0**53 - 1, 5e-324, float("nan"), float("inf"), float("-inf"), 0.1, 1e-7]
TEXTS = ["", "a", "b", "x", "true", "T", "f", "FALSE", "1", "0", "7", "007", "1.5", "1e3", "1e400", "+5", "-3", " 7", "7 ", "1_000", "nan", "NaN", "inf", "null", "[1, 2]", "[1.5, 2.0]", '["1", "2"]',
         "[1", "[]", "{}", "é", "𝔘𝔘", "k" * 256, "k" * 257, "a\x00b", "\x1b[2J", "a\nb", 'a"b', "a,b", "2026-01-31T12:00:00Z", "9" * 30, "9223372036854775808", "-9223372036854775808", "٣"]
DAYS = [datetime.datetime(2026, 1, 31, 12), datetime.datetime(1970, 1, 1), datetime.datetime(1969, 12, 31), datetime.datetime(2026, 1, 31, 12, 0, 0, 123_456), datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1)]
DECIMALS = [decimal.Decimal(v) for v in ("0", "1", "-1", "7", "1.5", "1.00", "99999999999999999999", "9223372036854775807", "1E+3", "0.01")]
LISTS = [[1.0, 2.0], [1.5, -2.0], [], [1.0], [1.0, float("nan")], [1.0, 2.0, 3.0], [1e308, 0.0], [0.0, float("inf")]]
FIXED_UUID = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
KINDS = {
    # Name: values, Arrow's types, Avro's, Protobuf's, whether JSON has it.
    "integers": (INTEGERS, [pa.int64()], "long", F.TYPE_INT64, True),
    "small": ([0, 1, 2, 100], [pa.int8(), pa.uint16(), pa.dictionary(pa.int8(), pa.int64())], "int", F.TYPE_UINT32, True),
    "unsigned": ([0, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1], [pa.uint64()], None, F.TYPE_UINT64, True),
    "floats": (FLOATS, [pa.float64()], "double", F.TYPE_DOUBLE, False),
    "halves": ([0.0, 1.0, 1.5, -2.0, float("nan"), float("inf")], [pa.float32(), pa.float16()], "float", F.TYPE_FLOAT, False),
    "text": (TEXTS, [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], "string", F.TYPE_STRING, True),
    "bytes": ([*(t.encode() for t in TEXTS[:12]), b"\xff", b"\x00", b"a\xff"], [pa.binary(), pa.large_binary(), pa.binary_view()], "bytes", F.TYPE_BYTES, False),
    "booleans": ([True, False], [pa.bool_()], "boolean", F.TYPE_BOOL, True),
    "decimals": (DECIMALS, [pa.decimal128(38, 2), pa.decimal256(60, 2)], DECIMAL, None, False),
    "uuids": ([uuid.UUID(int=n) for n in range(3)], [pa.uuid()], FIXED_UUID, None, False),
    "times": (DAYS, [pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin")], None, ".google.protobuf.Timestamp", False),
    "times of day": ([datetime.time(12, 30), datetime.time(0, 0, 0, 5)], [pa.time64("us")], None, None, False),
    "durations": ([datetime.timedelta(hours=1), datetime.timedelta(days=-1, microseconds=5)], [pa.duration("us")], None, None, False),
    "lists": (LISTS, [pa.list_(pa.float64()), pa.large_list(pa.float64())], {"type": "array", "items": "double"}, [F.TYPE_DOUBLE], False),
    "structs": ([{"a": 1}], [pa.struct([("a", pa.int64())])], {"type": "map", "values": "long"}, ".rows.Row.Inner", True),
    "nothing": ([None], [pa.null()], "null", F.TYPE_STRING, True),
}
FEATURES = [declared | more for declared, missing in (
    ({"type": "number"}, -1), ({"type": "bool"}, False), ({"categories": ["a", "1", "true", "7"]}, "7"), ({"hash": 5}, "x"), ({"text": 4}, "x y"), ({"vector": 2}, [8, 9])) for more in ({}, {"missing": missing})]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
TRUTHS = {"true": 1, "t": 1, "1": 1, "false": 0, "f": 0, "0": 0}


class Refused(Exception):
    """The reference refuses a value."""


def plain(value):
    """A value as JSON has it; what JSON has not stays as it is."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, decimal.Decimal):
        return int(value) if value % 1 == 0 else float(value)
    if isinstance(value, uuid.UUID | datetime.time | datetime.timedelta):
        return str(value)
    return value


def scalar(value):
    """A value as keys and categories have it: text, an integer or a truth value. Raises: Refused."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, float) and math.isfinite(value) and value % 1 == 0 and abs(value) < 2**53:
        return int(value)
    if type(value) not in (str, int, bool):
        raise Refused
    return value


def key_of(value):
    value = scalar(value)
    if value == "" or isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63):
        raise Refused
    if isinstance(value, str) and (len(value.encode()) > 256 or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value)):
        raise Refused
    return value


def number_of(value):
    if isinstance(value, str) and len(value) <= 64 and NUMBER.fullmatch(value):
        value = float(value)
    if type(value) not in (int, float) or not abs(value) <= MAX_FEATURE:
        raise Refused
    return float(value)


def time_of(value):
    """Microseconds of a time in milliseconds."""
    value = value.strip() if isinstance(value, str) else value
    if isinstance(value, datetime.datetime):
        us = (value - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    elif isinstance(value, int) and not isinstance(value, bool):
        us = value * 1000
    else:
        if isinstance(value, str) and re.fullmatch("-?[0-9]{1,19}", value):
            return time_of(int(value))
        us = number_of(value) * 1000
    us = round(us)
    if not 0 <= us <= NOW + 60_000_000:
        raise Refused
    return us


def feature_of(value, declared):
    """The numbers of a feature. Raises: Refused."""
    missing = declared.get("missing")
    if value is None or (value == "" and missing is not None and "" not in declared.get("categories", ())):
        if missing is None:
            raise Refused
        value = missing
    if "vector" in declared:
        if isinstance(value, str) and value.startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                raise Refused from None
        if not isinstance(value, list) or len(value) != declared["vector"]:
            raise Refused
        return [number_of(v) for v in value]
    if declared.get("type") == "number":
        return [number_of(value)]
    if declared.get("type") == "bool":
        value = TRUTHS.get(value.lower(), value) if isinstance(value, str) else value
        if type(value) is float and value in (0, 1):
            value = int(value)
        if value not in (0, 1) or type(value) not in (int, bool):
            raise Refused
        return [float(value)]
    value = scalar(value)
    if type(value) is int and abs(value) >= 2**63:
        raise Refused
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "text" in declared:
        return numbers_of_text(text, declared["text"])
    size = declared.get("hash") or len(declared["categories"]) + 1
    at = crc32c(text.encode()) % size if "hash" in declared else [*declared["categories"], text].index(text)
    return [float(at == n) for n in range(size)]


def reference(row, declared):
    """The edge of a row. Raises: Refused."""
    src, dst, time, x = map(plain, row)
    return key_of(src), key_of(dst), time_of(time), [float(np.float32(n)) for n in feature_of(x, declared)]


class Fuzz:
    """One run. Owner: the caller. registry: of schemas."""

    def __init__(self, folder: Path, seed: int, registry: Registry) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.registry = registry
        self.num_rows = self.num_edges = self.num_refused = self.num_bitten = 0
        self._made: dict = {}

    def run(self, count: int) -> None:
        while self.num_rows < count:
            self.random.choice((self.typed, self.typed, self.text, self.json, self.bitten))()

    def settings(self, form: str, feature: int):
        """Settings and decoder of topic t in a format."""
        if (form, feature) not in self._made:
            fields = {"src": "src", "dst": "dst", "time": "time", "features": {"x": "x"}}
            made = load_settings(None, {"graph.edge_sets": {"default": {"features": {"x": FEATURES[feature]}}}, "schema_registry.url": self.registry.url,
                                        "sources": [{"topic": "t", "time": "ms", "format": form or "json", "fields": fields}], "kafka.topics": ["t"]}, {})[0]
            self._made[form, feature] = made, make_decoder(made, schema_of(made))
        return self._made[form, feature]

    def decoded(self, form: str, feature: int, records):
        """The edges of records in order, and how many of their items are refused."""
        _, decoder = self.settings(form, feature)
        block, rejected = decoder.decode(records, 0, NOW, "t" if form else "")
        assert all(r.reason in REASONS and len(r.error) <= 490 for r in rejected)
        keys = decoder.keys.keys
        rows = zip(block.rows, np.asarray(block.values).tolist(), strict=True)
        return [(keys[r["a"]], keys[r["b"]], int(r["time"]), v) for r, v in rows], len(rejected)

    def expected(self, rows, feature: int):
        """The edges of rows, and how many rows are refused, as the reference has them."""
        edges = []
        for row in rows:
            try:
                edges.append(reference(row, FEATURES[feature]))
            except Refused:
                continue
        self.num_rows += len(rows)
        self.num_edges += len(edges)
        self.num_refused += len(rows) - len(edges)
        return edges, len(rows) - len(edges)

    def column(self, field: str, count: int):
        """A name of `KINDS` and values of it, with some that are missing."""
        draw = self.random
        usual = {"src": ["integers", "text"], "dst": ["text", "integers"], "time": ["integers"]}.get(field, ["floats", "text", "lists", "booleans"])
        name = draw.choice(usual) if draw.random() < 0.6 else draw.choice(list(KINDS))
        values = KINDS[name][0]
        if name == usual[0] and draw.random() < 0.7:
            values = {"src": [1, 2, 3], "dst": ["a", "b", "x"], "time": [5, NOW // 1000 - 5]}.get(field, [0.0, 1.0, 1.5])
        hole = draw.choice([0, 0, 0.1])
        return name, [None if draw.random() < hole else draw.choice(values) for _ in range(count)]

    def typed(self) -> None:
        """Columns of any types in Parquet, Arrow, Avro, Protobuf and JSON."""
        draw = self.random
        count, feature = draw.randrange(1, MOST_ROWS), draw.randrange(len(FEATURES))
        columns = {field: self.column(field, count) for field in ("src", "dst", "time", "x")}
        want = self.expected(list(zip(*(values for _, values in columns.values()), strict=True)), feature)
        kinds = {field: KINDS[name] for field, (name, _) in columns.items()}

        def same(what, found):
            assert found == want, (what, FEATURES[feature], columns, found, want)

        arrow = {field: Typed(self.array(kinds[field][1], values), values) for field, (_, values) in columns.items()}
        same("live arrow", self.decoded("arrow", feature, [Record(stream_of(table_of(arrow)), 0, NOW // 1000)]))
        form = draw.choice(("parquet", "arrow"))
        try:
            path = write(self.folder, form, arrow)
        except (pa.ArrowException, OSError):
            path = write(self.folder, "arrow", arrow)  # types that Parquet lacks
        made, _ = self.settings("json", feature)
        records = [FileRow(offset=n, value=v) for n, v in rows_of_sources(made.sources, EventFile(path), "ms")]
        same(form, self.decoded("json", feature, records))
        for form, at in (("avro", 2), ("protobuf", 3)):
            # A list that is absent is an empty one in Protobuf.
            has_all = all(kind[at] is not None for kind in kinds.values())
            if draw.random() < 0.3 and has_all and not (form == "protobuf" and any(name == "lists" and None in values for name, values in columns.values())):
                self.of_registry(form, at, feature, columns, same)
        if all(kind[4] for kind in kinds.values()):
            records = [Record(json.dumps(dict(zip(columns, row, strict=True))).encode(), n, NOW // 1000) for n, row in enumerate(zip(*(v for _, v in columns.values()), strict=True))]
            same("json", self.decoded("json", feature, records))

    def array(self, kinds, values):
        """Values as an Arrow array of one of some types."""
        kind = self.random.choice(kinds)
        if pa.types.is_dictionary(kind):
            return pa.array(values, kind.value_type).dictionary_encode()
        if kind == pa.uuid():
            return pa.array([None if v is None else v.bytes for v in values], pa.uuid())
        if pa.types.is_timestamp(kind) and kind.tz:
            values = [None if v is None else v.replace(tzinfo=datetime.UTC) for v in values]
        return pa.array(values, kind)

    def of_registry(self, form, at, feature, columns, same) -> None:
        """The columns as Avro or Protobuf."""
        made = {}
        for field, (name, values) in columns.items():
            kind = KINDS[name][at]
            if form == "avro":
                kind = kind if kind == "null" else ["null", kind]
                values = [v.bytes if isinstance(v, uuid.UUID) else v for v in values]
                if name == "uuids":
                    kind = ["null", FIXED_UUID | {"name": f"Id_{field}"}]
            made[field] = Typed(kind, values)
        records = [Record(value, n, NOW // 1000) for n, value in enumerate(values_of(form, made, self.registry))]
        same(form, self.decoded(form, feature, records))

    def text(self) -> None:
        """Any text in the cells of CSV, by a source and by named columns."""
        draw = self.random
        count, feature = draw.randrange(1, MOST_ROWS), draw.randrange(len(FEATURES))
        usual = {"src": ["1", "2", "3"], "dst": ["a", "b", "x y"], "time": ["5", str(NOW // 1000 - 5)], "x": ["1", "0", "1.5", "a", "[1, 2]"]}
        cells = {field: [draw.choice(TEXTS) if draw.random() < draw.choice([0, 0, 0.1]) else draw.choice(values) for _ in range(count)] for field, values in usual.items()}
        path = write(self.folder, "csv", cells)
        # Digits of two forms in a column of keys refuse the file; an integer is one everywhere.
        keys = {field: [c for c in cells[field] if c] for field in ("src", "dst")}
        are_integers = {field: [INTEGER.fullmatch(c) is not None and abs(int(c)) < 2**63 for c in of] for field, of in keys.items()}
        is_mixed = any(any(is_integer) and any(re.fullmatch("[+-]?[0-9]+", c) and c.isascii() and not one for c, one in zip(keys[field], is_integer, strict=True))
                       for field, is_integer in are_integers.items())
        rows = [[None if c == "" else int(c) if field in keys and INTEGER.fullmatch(c) and abs(int(c)) < 2**63 else c for field, c in zip(cells, row, strict=True)]
                for row in zip(*cells.values(), strict=True)]
        want = self.expected(rows, feature)
        made, _ = self.settings("json", feature)
        try:
            records = [FileRow(offset=n, value=v) for n, v in rows_of_sources(made.sources, EventFile(path), "ms")]
        except SettingsError as error:
            assert is_mixed and str(path) in str(error), (cells, error)
            return
        assert not is_mixed and self.decoded("json", feature, records) == want, (cells, FEATURES[feature], self.decoded("json", feature, records), want)
        # Times of named columns may be ISO 8601 among numbers.
        if not any("T12" in cell for cell in cells["time"]):
            self.by_columns(path, feature, want, cells)

    def by_columns(self, path, feature, want, shown) -> None:
        """The rows of a file by the names of its columns: those before the first that does not fit come out as they went in."""
        made, _ = self.settings("", feature)
        events = []
        try:
            for event in read_events(EventFile(path), resolved(Columns(features=("x",)), made), Times("ms", "ms", 60, SystemClock())):
                events.append(FileRow(offset=event.row, value=event.value))
        except SettingsError as error:
            # These times are written in milliseconds.
            is_finer = "is finer than milliseconds" in str(error)
            assert (want[1] or is_finer) and str(path) in str(error), (shown, error)
            want = want[0], want[1] + is_finer
        edges, num_refused = self.decoded("", feature, events)
        if not want[1]:
            assert (edges, num_refused) == want, (shown, edges, want)
        assert edges == want[0][:len(edges)], (shown, edges, want)

    def json(self) -> None:
        """Any values in lines of NDJSON and in records of JSON."""
        draw = self.random
        count, feature = draw.randrange(1, MOST_ROWS), draw.randrange(len(FEATURES))
        usual = {"src": [1, 2, 3], "dst": ["a", "b"], "time": [5, NOW // 1000 - 5], "x": [1, 0, 1.5, "a", [1, 2], True]}
        odd = [*INTEGERS, 2**63, 10**30, *(f for f in FLOATS if math.isfinite(f)), *TEXTS, True, False, None, {}, {"a": 1}, [], [1, True], [None, 1], ["1", "2"], {"base64": "YQ=="}]
        rows = [[draw.choice(odd) if draw.random() < 0.05 else draw.choice(values) for values in usual.values()] for _ in range(count)]
        want = self.expected(rows, feature)
        lines = [json.dumps(dict(zip(usual, row, strict=True)), ensure_ascii=draw.random() < 0.5) for row in rows]
        found = self.decoded("json", feature, [Record(line.encode(), n, NOW // 1000) for n, line in enumerate(lines)])
        assert found == want, (lines, FEATURES[feature], found, want)
        path = self.folder / "t.ndjson"
        path.write_text("".join(f"{line}{draw.choice(['', ' ', chr(10)])}\n" for line in lines))
        made, _ = self.settings("json", feature)
        records = [FileRow(offset=n, value=v) for n, v in rows_of_sources(made.sources, EventFile(path), "ms")]
        assert self.decoded("json", feature, records) == want, lines

    def bitten(self) -> None:
        """A file with some bytes changed, in one of four compressed and in one of four in a folder of parts."""
        draw = self.random
        count, feature = draw.randrange(1, MOST_ROWS), draw.randrange(len(FEATURES))
        form = draw.choice(("csv", "ndjson", "parquet", "arrow"))
        columns = {"src": [draw.choice([1, 2, 3]) for _ in range(count)], "dst": [draw.choice("abc") for _ in range(count)], "time": [5] * count, "x": [1.5] * count}
        path = write(self.folder, form, columns)
        data = path.read_bytes()
        if form in ("csv", "ndjson") and draw.random() < 0.25:
            data = gzip.compress(data)
        for _ in range(draw.choice([1, 1, 2, 5])):
            at, end = draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)
            odd = draw.choice([b"", b"\0", b"\xff", b'"', b"\r", b"\n", b",", b"{", b"[" * 2000, b"\xef\xbb\xbf", draw.randbytes(4)])
            data = draw.choice([data[:at], data[:at] + odd + data[at:], data[:at] + odd + data[at + len(odd):], data[:at] + data[max(at, end):]])
        path.write_bytes(data)
        if draw.random() < 0.25:
            parts = self.folder / "parts"
            shutil.rmtree(parts, ignore_errors=True)
            parts.mkdir()
            (parts / "_SUCCESS").touch()
            for n in range(2):
                shutil.copy(path, parts / f"{n}.{form}")
            path = parts
        self.num_rows += count
        self.num_bitten += 1
        text_form = draw.choice([None, None, TextForm(header=False, columns=("src", "dst", "time", "x")), TextForm(delimiter=";"), TextForm(quoting="none"), TextForm(comment="s"), TextForm(strip=True)])
        made, decoder = self.settings("json", feature)
        for read in (lambda file: rows_of_sources(made.sources, file, "ms"), read_rows):
            try:
                records = [FileRow(offset=n, value=v) for n, v in read(EventFile(path, text_form if form == "csv" else None))]
            except SettingsError as error:
                assert str(path) in str(error), error
                continue
            self.decoded("json", feature, records)
        try:
            list(read_events(EventFile(path), resolved(Columns(features=("x",)), made), Times("ms", "ms", 60, SystemClock())))
        except SettingsError as error:
            assert str(path) in str(error), error


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"{count:,} rows of files and topics, seed {seed}", flush=True)
    registry = Registry()
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder), seed, registry)
        fuzz.run(count)
    registry.stop()
    print(f"all became what was promised: {fuzz.num_edges:,} edges, {fuzz.num_refused:,} rows refused, {fuzz.num_bitten:,} files changed")
