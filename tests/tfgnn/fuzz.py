"""Mutates schemas, specs, records, TFRecord files and tables: each gives a named error or a right result.

`python -m tests.tfgnn.fuzz [inputs] [seed]` runs in an address space that has room for no large allocation,
ends with a traceback where an input takes more than ten seconds, and exits with 1 where it found anything. What an
input was mutated from and how follows from the seed and its number alone.
"""

import faulthandler
import logging
import random
import resource
import struct
import sys
import tempfile
import traceback
from pathlib import Path

import structlog

from streamd.cli.options import printable
from streamd.errors import TFGNNError
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.records import frame, read_records
from streamd.tfgnn.sampling.spec import parse_spec, read_spec, spec_binary, spec_text
from streamd.tfgnn.schema.messages import EdgeSet
from streamd.tfgnn.schema.schema import parse_schema, read_schema, schema_binary, schema_text
from streamd.tfgnn.tables.listing import Part, lines_of
from streamd.tfgnn.tables.reading import read_table
from tests.tfgnn import fuzz_playing, fuzz_sampling, reference

GOLDEN = Path(__file__).parent / "golden"
HANG_SECONDS = 10
ROOM_BYTES = 512 << 20
INTERESTING = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\n", b"\x12", b"\x1a", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff\xff\xff\xff\x0f",
               struct.pack("<Q", 2**62), struct.pack("<I", 2**31), b"99999999999999999999", b"-1", b'"', b"{", b"}", b",", b"\r\n", b"\x80\x80\x80\x80\x00"]


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with some changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 40)))
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.randrange(256)
            case 2:
                data[at:at] = rng.choice(INTERESTING)
            case 3:
                data[at:to] = rng.choice(INTERESTING)
            case 4:
                del data[at:to]
            case 5:
                data[at:at] = data[at:to] * rng.choice((1, 2, 50))
            case 6:
                del data[at:]
            case 7:
                other = rng.choice(seeds)
                start = rng.randrange(len(other) + 1)
                data[at:to] = other[start : start + 40]
    return bytes(data)


class Fuzz:
    """The seeds and the checks. Owner: one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schema = read_schema(GOLDEN / "encoding/schema.pbtxt")
        self.codec = Codec(self.schema)
        tables = read_schema(GOLDEN / "unigraph_tfrecord/graph.pbtxt")
        rows = read_schema(GOLDEN / "unigraph_csv/graph.pbtxt")
        self.tables, self.rows = tables, rows
        specs = [read_spec(GOLDEN / "topk2.pbtxt")]
        self.paper, self.cites = tables.node_sets["paper"], tables.edge_sets["cites"]
        self.csv_sets = [rows.node_sets["paper"], rows.edge_sets["cites"], rows.edge_sets["written"],
                         EdgeSet(source="a", target="b", metadata={})]
        files = [p.read_bytes() for p in sorted(GOLDEN.glob("*/*tfrecord*")) if p.is_file()]
        self.seeds = {
            "schema": [f(s) for s in (self.schema, tables, rows) for f in (lambda s: schema_text(s).encode(), schema_binary)],
            "spec": [f(s) for s in specs for f in (lambda s: spec_text(s).encode(), spec_binary)],
            "record": [p.read_bytes() for p in sorted(GOLDEN.glob("encoding/*.example"))],
            "tfrecord": files,
            "csv": [p.read_bytes() for p in sorted(GOLDEN.glob("unigraph_csv/*.csv"))],
            "edges": fuzz_sampling.EDGES,
            "plan": fuzz_sampling.SPECS,
            "rows": [r for p in sorted(GOLDEN.glob("unigraph_tfrecord/*tfrecord*")) for r in reference.frames(p.read_bytes())[0]],
        }
        self.playing = fuzz_playing.Playing(folder)
        self.seeds |= {"tables": fuzz_playing.SEEDS, "declaration": [*self.playing.own, *self.seeds["schema"]]}
        self.seeds["shown"] = [*files, *self.seeds["csv"], *self.seeds["record"]]
        self.kinds = list(self.seeds)

    def one(self, number: int, seed: int) -> str | None:
        """Check one input. Returns: what is wrong, None where all is well."""
        rng = random.Random(f"{seed}:{number}")
        kind = self.kinds[number % len(self.kinds)]
        data = mutate(rng, self.seeds[kind])
        try:
            return getattr(self, f"check_{kind}")(data, rng)
        except TFGNNError as error:
            return None if "Operator action" in str(error) or str(error).endswith(".") else f"unclear: {error}"
        except BaseException:  # noqa: BLE001
            return traceback.format_exc()

    def check_schema(self, data, rng):
        schema = parse_schema(data)
        if parse_schema(schema_text(schema).encode()) != schema or parse_schema(schema_binary(schema)) != schema:
            return "another schema is read back"
        return None

    def check_spec(self, data, rng):
        spec = parse_spec(data)
        if parse_spec(spec_text(spec).encode()) != spec or parse_spec(spec_binary(spec)) != spec:
            return "another spec is read back"
        return None

    def check_record(self, data, rng):
        try:
            want = reference.decode(data, self.schema)
        except reference.Refused:
            want = None
        try:
            graph = self.codec.decode(data)
        except TFGNNError as error:
            if want is not None:
                return f"refused: {error}"
            raise
        if want is None or not reference.same(reference.of_graph(graph), want):
            return "another result than the reference"
        again = self.codec.decode(self.codec.encode(graph))
        if not reference.same(reference.of_graph(again), reference.of_graph(graph)):
            return "another graph is read back"
        return None

    def check_tfrecord(self, data, rng):
        want, damaged = reference.frames(data)
        path = self.folder / "x.tfrecord"
        path.write_bytes(data)
        found = []
        try:
            for record in read_records(path):
                found.append(record)
        except TFGNNError as error:
            if data[:2] == b"\x1f\x8b":
                raise
            if damaged is None or f"byte {damaged}," not in str(error) or found != want:
                return f"{error} for damage at {damaged}"
            raise
        return None if damaged is None and found == want else "damage was not seen"

    def check_csv(self, data, rng):
        path = self.folder / "x.csv"
        path.write_bytes(data)
        for rows in read_table(rng.choice(self.csv_sets), path):
            for value in (rows.ids, rows.source, rows.target, rows.weight, *rows.features.values(), *rows.others.values()):
                if value is not None and len(value) != rows.num:
                    return "columns of different lengths"
        return None

    def check_shown(self, data, rng):
        path = self.folder / rng.choice(("x.tfrecord", "x.csv"))
        path.write_bytes(frame(data) if rng.random() < 0.5 else data)
        schema, set_name = rng.choice(((None, None), (self.schema, None), (self.tables, "paper"), (self.tables, "cites"), (self.rows, "written")))
        part = Part(skip=rng.randrange(3), count=rng.randrange(1, 5), values=rng.randrange(1, 9))
        for num, line in enumerate(lines_of(path, part, schema, set_name)):
            if len(printable(line)) > 200_000 or num > 10_000:
                return f"{num} lines, the last of {len(line)} characters"
        return None

    def check_edges(self, data, rng):
        path = self.folder / "x.csv"
        path.write_bytes(data if rng.random() < 0.2 else fuzz_sampling.edges_at_random(rng))
        return fuzz_sampling.check(path, rng.choice(fuzz_sampling.SPECS), rng)

    def check_plan(self, data, rng):
        path = self.folder / "edges.csv"
        path.write_bytes(fuzz_sampling.edges_at_random(rng))
        return fuzz_sampling.check(path, data if rng.random() < 0.2 else fuzz_sampling.spec_at_random(rng), rng)

    def check_tables(self, data, rng):
        return self.playing.tables(data, rng)

    def check_declaration(self, data, rng):
        return self.playing.declaration(data)

    def check_rows(self, data, rng):
        path = self.folder / "x.tfrecord"
        path.write_bytes(frame(self.seeds["rows"][0]) + frame(data))
        for rows in read_table(rng.choice((self.paper, self.cites)), path):
            for value in (rows.ids, rows.source, rows.target, rows.weight, *rows.features.values()):
                if value is not None and len(value) != rows.num:
                    return "columns of different lengths"
        return None


def run(inputs: int, seed: int, stop_after: int = 3) -> list[str]:
    """What was found, at most `stop_after`."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder))
        for number in range(inputs):
            wrong = fuzz.one(number, seed)
            if wrong:
                found.append(f"input {number} of seed {seed}: {wrong}")
                if len(found) == stop_after:
                    break
    return found


def main(inputs: int, seed: int) -> int:
    # What is unusual in a schema is logged, which is no finding.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    run(300, seed)  # what is imported and compiled once needs room of its own
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM_BYTES, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder))
        outcomes = dict.fromkeys(fuzz.kinds, 0)
        for number in range(inputs):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            (Path(folder) / "number").write_text(str(number))
            wrong = fuzz.one(number, seed)
            outcomes[fuzz.kinds[number % len(fuzz.kinds)]] += 1
            if wrong:
                print(f"input {number} of seed {seed}: {wrong}")
                return 1
            if number % 10_000 == 9_999:
                print(f"{number + 1:,} inputs", flush=True)
        faulthandler.cancel_dump_traceback_later()
    print(f"{inputs:,} inputs, nothing found: {outcomes}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*(int(a) for a in (sys.argv[1:] + ["100000", "0"][len(sys.argv) - 1 :]))))
