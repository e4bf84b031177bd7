"""TFRecord files and GraphTensors beside the Python packages for them, in the same run on the same records.

Peers that are not installed are left out: `pip install --no-deps tfrecord tfrecord-lite rustfrecord`.
"""

import importlib
import tempfile
from pathlib import Path

import numpy as np

from streamd.tfgnn.records.columns import ColumnReader
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.record_batches import read_batches
from streamd.tfgnn.records.records import read_blocks, read_records, write_records
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, Ragged
from streamd.tfgnn.schema.messages import Context, EdgeSet, Example, GraphSchema, NodeSet
from streamd.tfgnn.schema.schema import new_feature
from tests.benchmarks.measure import Row, best_seconds, pick_size

RECORDS, NODES, EDGES, DIM, ROUNDS = pick_size(20_000, 100), 100, 300, 32, pick_size(200, 2)
SAMPLES = pick_size(5_000, 100)
KEYS = [("id", "bytes"), ("src", "int64"), ("dst", "int64"), ("time", "int64"), ("emb", "float")]


def rows() -> list[bytes]:
    """Records of 34 integers, 136 floats and 17 strings, as protobuf writes them."""
    rng = np.random.default_rng(0)
    made = Example()
    found = []
    for _ in range(RECORDS):
        made.Clear()
        have = made.features.feature
        for key, size in (("src", 16), ("dst", 16), ("time", 2)):
            have[key].int64_list.value.extend(rng.integers(0, 2**31, size).tolist())
        have["emb"].float_list.value.extend(rng.normal(size=136).tolist())
        have["id"].bytes_list.value.extend(b"user:%d" % i for i in rng.integers(0, 10**6, 17).tolist())
        found.append(made.SerializeToString())
    return found


def ours(path: Path) -> int:
    """All values of a file as columns; every checksum is checked."""
    reader = ColumnReader(KEYS)
    return sum(len(column.values) for block in read_blocks(path) for column in reader.read(block.data, block.start_R, block.end_R, str))


def by_protobuf(path: Path) -> int:
    """The same by protobuf's parser on records that were read and checked."""
    example, total = Example, 0
    for record in read_records(path):
        have = example.FromString(record).features.feature
        for key, kind in KEYS:
            total += len(np.array(getattr(have[key], f"{kind}_list").value))
    return total


def by_package(path: Path) -> int:
    loader = importlib.import_module("tfrecord.reader").tfrecord_loader
    names = {"bytes": "byte", "int64": "int", "float": "float"}
    return sum(len(np.atleast_1d(v)) for row in loader(str(path), None, {k: names[kind] for k, kind in KEYS}) for v in row.values())


def by_lite(path: Path) -> int:
    iterate = importlib.import_module("tfrecord_lite").tf_record_iterator
    return sum(len(v) for row in iterate(str(path)) for v in row.values())


def by_rust(path: Path) -> int:
    """Of each list of strings it gives the first string alone, which is not counted."""
    reader = importlib.import_module("rustfrecord").Reader(str(path), compressed=False)
    return sum(np.size(v) for row in reader for k, v in row.items() if k != "id")


def package_writes(path: Path, records: list[bytes]) -> None:
    """The frames alone, of records that are made already."""
    masked = importlib.import_module("tfrecord").TFRecordWriter.masked_crc
    with path.open("wb") as file:
        for record in records:
            length = len(record).to_bytes(8, "little")
            file.write(length + masked(length) + record + masked(record))


def sample() -> tuple[GraphSchema, GraphTensor]:
    """A sampled neighborhood: 100 nodes with 32 floats, an id and ragged words, and 300 edges."""
    rng = np.random.default_rng(0)
    schema = GraphSchema(
        context=Context(features={"seed_id": new_feature("DT_STRING")}),
        node_sets={"paper": NodeSet(features={
            "#id": new_feature("DT_STRING"), "emb": new_feature("DT_FLOAT", (DIM,)),
            "year": new_feature("DT_INT64"), "words": new_feature("DT_INT64", (None,))})},
        edge_sets={"cites": EdgeSet(source="paper", target="paper", features={"weight": new_feature("DT_FLOAT")})})
    lengths = rng.integers(0, 6, NODES)
    ids = np.array([b"paper:%d" % i for i in range(NODES)], object)
    paper = {"#id": ids, "emb": rng.normal(size=(NODES, DIM)).astype(np.float32), "year": rng.integers(1900, 2030, NODES),
             "words": Ragged((None,), rng.integers(0, 50_000, lengths.sum()), (lengths,))}
    source, target = rng.integers(0, NODES, (2, EDGES))
    return schema, GraphTensor(
        context={"seed_id": ids[:1]}, node_sets={"paper": Nodes(sizes_C=np.array([NODES]), features=paper)},
        edge_sets={"cites": Edges(sizes_C=np.array([EDGES]), source_E=source, target_E=target,
                                  features={"weight": rng.random(EDGES).astype(np.float32)})})


def decode_by_protobuf(record: bytes) -> list[np.ndarray]:
    """The lists of a record as arrays: no checks, no shapes."""
    have = Example.FromString(record).features.feature
    return [np.array(getattr(one, one.WhichOneof("kind")).value) for one in have.values()]


def encode_by_protobuf(graph: GraphTensor) -> bytes:
    """The same record by protobuf: no checks."""
    made = Example()
    have = made.features.feature
    paper, cites = graph.node_sets["paper"], graph.edge_sets["cites"]
    have["context/seed_id"].bytes_list.value.extend(graph.context["seed_id"].tolist())
    have["nodes/paper.#id"].bytes_list.value.extend(paper.features["#id"].tolist())
    words = paper.features["words"]
    for key, values in (("nodes/paper.#size", paper.sizes_C), ("nodes/paper.year", paper.features["year"]), ("nodes/paper.words", words.values),
                        ("nodes/paper.words.d1", words.row_lengths[0]), ("edges/cites.#size", cites.sizes_C),
                        ("edges/cites.#source", cites.source_E), ("edges/cites.#target", cites.target_E)):
        have[key].int64_list.value.extend(values.tolist())
    have["nodes/paper.emb"].float_list.value.extend(paper.features["emb"].reshape(-1).tolist())
    have["edges/cites.weight"].float_list.value.extend(cites.features["weight"].tolist())
    return made.SerializeToString()


def microseconds(work) -> float:
    return best_seconds(lambda: [work() for _ in range(ROUNDS)], 5) / ROUNDS * 1e6


def run() -> list[Row]:
    found = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path, records = Path(folder) / "x.tfrecord", rows()
        write_records(path, records)
        size = path.stat().st_size / 1e6
        wanted = ours(path)
        speed = size / best_seconds(lambda: ours(path))
        for name, read, without in (("protobuf, checksums by streamd", by_protobuf, 0), ("tfrecord-lite, no checksums", by_lite, 0),
                                    ("tfrecord, no checksums", by_package, 0), ("rustfrecord, no checksums, one string of 17", by_rust, 17 * RECORDS)):
            try:
                assert read(path) == wanted - without, name
            except ModuleNotFoundError:
                continue
            found.append(Row(f"TFRecord to columns, {size:,.0f} MB", speed, "MB/s", size / best_seconds(lambda read=read: read(path)), name))
        frames = size / best_seconds(lambda: [None for _ in read_records(path)])
        found.append(Row("TFRecord to records, checksums checked", frames, "MB/s"))
        write = size / best_seconds(lambda: write_records(path, records))
        try:
            peer = size / best_seconds(lambda: package_writes(path, records))
            found.append(Row("TFRecord written (ours synced)", write, "MB/s", peer, "tfrecord's frames, not synced"))
        except ModuleNotFoundError:
            found.append(Row("TFRecord written, synced", write, "MB/s"))

    schema, graph = sample()
    codec = Codec(schema)
    record = codec.encode(graph)
    assert Example.FromString(record) == Example.FromString(encode_by_protobuf(graph))
    what = f"a sample of {NODES} nodes, {EDGES} edges, {len(record) / 1e3:,.0f} kB"
    found.append(Row(f"decode {what}", microseconds(lambda: codec.decode(record)), "us", microseconds(lambda: decode_by_protobuf(record)),
                     "protobuf to arrays, unchecked"))
    found.append(Row(f"encode {what}", microseconds(lambda: codec.encode(graph)), "us", microseconds(lambda: encode_by_protobuf(graph)),
                     "protobuf from arrays, unchecked"))
    return found + batches(codec, record)


def batches(codec: Codec, record: bytes) -> list[Row]:
    """Samples of a file as graphs of 64 samples each, beside protobuf's parser and arrays of each list."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder) / "x.tfrecord"
        write_records(path, [record] * SAMPLES)
        size = path.stat().st_size / 1e6
        ours = size / best_seconds(lambda: [None for _ in read_batches(codec, path, 64)], 3)
        single = size / best_seconds(lambda: [None for _ in codec.read(path)], 3)
        peer = size / best_seconds(lambda: [decode_by_protobuf(one) for one in read_records(path)], 3)
    name = "protobuf to arrays, unchecked, not joined"
    return [Row("samples read to graphs of 64 samples", ours, "MB/s", peer, name), Row("samples read to graphs one by one", single, "MB/s", peer, name)]
