"""A run of sampling: from a spec, tables and seeds to files of records, shard by shard.

A shard is written under a scratch name, synced and renamed, so a shard that is there is whole. A
run that was stopped goes on with the shards that are missing, if a marker beside them says that
they are of the same run.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streamd.errors import TFGNNError
from streamd.exchange.tfgnn.assembly import Assembler, is_latent, sampled_schema
from streamd.exchange.tfgnn.records import read_blocks, write_records
from streamd.exchange.tfgnn.sampling import AGGREGATIONS, Sampler, seed_set
from streamd.exchange.tfgnn.schema import GraphSchema, read_schema, schema_file, schema_text
from streamd.exchange.tfgnn.seeds import Seeds, every_node, load_seeds
from streamd.exchange.tfgnn.shards import find_files, shard_paths
from streamd.exchange.tfgnn.spec import SamplingSpec, read_spec
from streamd.exchange.tfgnn.tables_graph import (
    Progress,
    load_graph,
    needed_sets,
    read_tables,
    table_of,
)
from streamd.storage import write_durably

BATCH = 512
"""Samples that are drawn and held at once."""
SCHEMA_NAME = "schema.pbtxt"
"""The schema of samples, beside them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a run is asked for.

    base: the folder of relative names of tables. seeds: a table, None for every node of the seed
    set. output: base@N or a file. seed: of chance.
    """

    schema_path: Path
    base: Path
    schema: GraphSchema
    spec: SamplingSpec
    seeds: Path | None
    output: Path
    aggregation: str
    seed: int


def plan_run(
    graph_schema: Path,
    sampling_spec: Path,
    output: Path,
    *,
    data_path: Path | None = None,
    seeds: Path | None = None,
    aggregation: str = "edge",
    seed: int = 0,
) -> Run:
    """Read schema and spec and check that they can be run. graph_schema: also a folder with one
    .pbtxt. Raises: TFGNNError."""
    if aggregation not in AGGREGATIONS:
        raise TFGNNError(
            f"The edge aggregation {aggregation!r} is unknown.", f"one of {AGGREGATIONS}."
        )
    schema_path = schema_file(graph_schema)
    schema = read_schema(schema_path)
    spec = read_spec(sampling_spec, schema)
    base = schema_path.parent if data_path is None else data_path
    node_sets, edge_sets = needed_sets(schema, spec, aggregation)
    for name in edge_sets:
        table_of(name, schema.edge_sets[name], base)
    if seeds is None and is_latent(schema.node_sets[seed_set(spec)]):
        raise TFGNNError(
            f"Node set {seed_set(spec)!r} has no table to take all seeds of.", "name a seeds file."
        )
    if (output.parent / SCHEMA_NAME).resolve() == schema_path.resolve():
        raise TFGNNError(
            f"The samples' schema would be written over {schema_path}.",
            "write the samples into another folder.",
        )
    return Run(
        schema_path=schema_path,
        base=base,
        schema=schema,
        spec=spec,
        seeds=seeds,
        output=output,
        aggregation=aggregation,
        seed=seed,
    )


def sample_tables(run: Run, progress: Progress = lambda what, done, total: None) -> tuple[int, int]:
    """Sample from tables loaded whole, and write the shards that are missing.

    Returns: the samples of all shards, and how many were there already. Raises: TFGNNError.
    """
    marker = Marker(run)
    done = marker.begin()
    seeds, timed = (None, False) if run.seeds is None else load_seeds(run.seeds)
    ids = [] if seeds is None else seeds.seed_ids
    read = read_tables(run.base, progress)
    graph = load_graph(run.schema, run.spec, read, seed_ids=ids, aggregation=run.aggregation)
    start = seed_set(run.spec)
    if seeds is None:
        nodes = graph.node_sets[start]
        seeds = every_node(id for id, row in zip(nodes.ids, nodes.row_N, strict=True) if row >= 0)

    sampler = Sampler(
        graph,
        run.schema,
        run.spec,
        seed=run.seed,
        aggregation=run.aggregation,
        timed_seeds=timed,
    )
    assembler = Assembler(graph, run.schema, start, timed)
    written, kept, total = 0, 0, len(seeds.seed_ids)
    paths = shard_paths(run.output)
    for path, of_shard in zip(paths, seeds.shards(len(paths)), strict=True):
        count = len(of_shard.seed_ids)
        if path in done:
            kept += count
            continue
        step = partial(_step, progress, written + kept, total)
        written += write_records(path, sample_records(sampler, assembler, of_shard, step))
        progress("sampling", written + kept, total)
    write_schema(run, timed)
    marker.end(total)
    return total, kept


def _step(progress: Progress, made: int, total: int, of_shard: int) -> None:
    """Tell how far all shards are."""
    progress("sampling", made + of_shard, total)


def sample_records(
    sampler: Sampler,
    assembler: Assembler,
    seeds: Seeds,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[bytes]:
    """Yield the records of samples, some hundred at a time. progress: takes how many are done."""
    for at in range(0, len(seeds.seed_ids), BATCH):
        progress(at)
        places = np.arange(at, min(at + BATCH, len(seeds.seed_ids)))
        yield from assembler.records(sampler.sample(seeds.take(places)))


def write_schema(run: Run, timed: bool) -> None:
    """Write the schema of the samples beside them."""
    schema = sampled_schema(run.schema, seed_set(run.spec), timed)
    write_durably(run.output.parent / SCHEMA_NAME, schema_text(schema).encode())


class Marker:
    """A file beside the shards of a run that is not done. Owner: the run.

    It tells what the run was asked for, so that another run does not go on with its shards.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._path = run.output.with_name(f".{run.output.name}.run")

    def begin(self) -> set[Path]:
        """Mark the run as begun. Returns: its shards that are there. Raises: TFGNNError where there
        are shards of another run, or of one that is done."""
        digest = self._digest()
        there = {path for path in shard_paths(self._run.output) if path.exists()}
        if there:
            try:
                same = json.loads(self._path.read_text()) == digest
            except (OSError, ValueError):
                same = False
            if not same:
                raise TFGNNError(
                    f"{min(there)} is there already, of another run or of one that is done.",
                    "remove it and its other shards, or choose another name.",
                )
        self._run.output.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._path, json.dumps(digest).encode())
        return there

    def end(self, want: int) -> None:
        """Count the records of all shards and mark the run as done. Raises: TFGNNError where a
        record is missing or there twice."""
        count = 0
        for path in shard_paths(self._run.output):
            count += sum(len(block.start_R) for block in read_blocks(path))
        if count != want:
            raise TFGNNError(
                f"{self._run.output} has {count} records for {want} seeds.",
                "remove its shards and run it again; look at the runner's log.",
            )
        self._path.unlink()

    def _digest(self) -> dict[str, str]:
        """What the run was asked for: a checksum, and the size and time of each file it reads."""
        run = self._run
        asked = json.dumps([asdict(run.spec), run.aggregation, run.seed], sort_keys=True)
        files = [run.schema_path] + ([] if run.seeds is None else find_files(run.seeds))
        for names, sets in zip(
            needed_sets(run.schema, run.spec, run.aggregation),
            (run.schema.node_sets, run.schema.edge_sets),
            strict=True,
        ):
            for name in names:
                one: Any = sets[name]
                if one.metadata is not None and one.metadata.filename:
                    files += find_files(table_of(name, one, run.base))
        states = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
        found = hashlib.sha256(f"{asked} {states}".encode()).hexdigest()
        return {"asked": asked, "sha256": found}
