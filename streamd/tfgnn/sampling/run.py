"""A sampling run: from a spec, a graph and seeds to files of records, shard by shard.

A shard is written to a scratch file, synced and renamed, so an existing shard is complete. A
stopped run resumes with the missing shards, if a marker file next to the shards proves that they
are of the same run.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from streamd.errors import TFGNNError
from streamd.storage import write_durably
from streamd.tfgnn.records.records import read_blocks
from streamd.tfgnn.records.shards import find_files, make_folder_of, shard_paths
from streamd.tfgnn.sampling.adjacency import Graph, shown_id
from streamd.tfgnn.sampling.assembly import Assembler, is_latent, schema_of_samples
from streamd.tfgnn.sampling.sampler import AGGREGATIONS, Sampler, seed_set
from streamd.tfgnn.sampling.seeds import Seeds, every_node, load_seeds
from streamd.tfgnn.sampling.shard_writing import in_batches, write_shards
from streamd.tfgnn.sampling.spec import read_spec, spec_text
from streamd.tfgnn.sampling.tables_graph import (
    Progress,
    load_graph,
    needed_sets,
    read_tables,
    table_of,
)
from streamd.tfgnn.schema.messages import GraphSchema, SamplingSpec
from streamd.tfgnn.schema.schema import read_schema, schema_file, schema_text

logger = structlog.get_logger()
SCHEMA_NAME = "schema.pbtxt"
"""File of the samples' schema, in their folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The request of a run.

    seeds: a table, None for every node of the seed set. output: base@N or a file. seed: of the
    random draws. processes: number of sampling processes. Raises: TFGNNError for an unknown
    aggregation.
    """

    schema: GraphSchema
    spec: SamplingSpec
    seeds: Path | None = None
    output: Path
    aggregation: str = "edge"
    seed: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise TFGNNError(
                f"The edge aggregation {self.aggregation!r} is unknown.", f"one of {AGGREGATIONS}."
            )

    @property
    def request(self) -> str:
        """All inputs of the samples except the graph, as JSON."""
        seeds = [] if self.seeds is None else file_states(find_files(self.seeds))
        return json.dumps(
            [spec_text(self.spec), self.aggregation, self.seed, seeds], sort_keys=True
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRun(Run):
    """A run on tables. base: folder of relative file names."""

    schema_path: Path
    base: Path

    def state(self) -> dict[str, str]:
        """The state for the marker: the request, and a checksum of it with the sizes and times of
        all input files and the features of the samples."""
        files = [self.schema_path]
        # The schema, and all tables that the run reads.
        for names, sets in zip(
            needed_sets(self.schema, self.spec, self.aggregation),
            (self.schema.node_sets, self.schema.edge_sets),
            strict=True,
        ):
            for name in names:
                one: Any = sets[name]
                if one.metadata.filename:
                    files += find_files(table_of(name, one, self.base))
        # Another release may write other features, and must not resume these shards.
        features = schema_text(schema_of_samples(self.schema, {}, ()))
        parts = f"{self.request} {file_states(files)} {features}"
        found = hashlib.sha256(parts.encode()).hexdigest()
        return {"asked": self.request, "sha256": found}


def file_states(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Path, size and modification time of files."""
    return [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]


def plan_run(
    graph_schema: Path,
    sampling_spec: Path,
    output: Path,
    *,
    data_path: Path | None = None,
    seeds: Path | None = None,
    aggregation: str = "edge",
    seed: int = 0,
    processes: int = 1,
) -> TableRun:
    """Read schema and spec, and check that they can be run. graph_schema: a file, or a folder with
    one .pbtxt. Raises: TFGNNError."""
    schema_path = schema_file(graph_schema)
    schema = read_schema(schema_path)
    spec = read_spec(sampling_spec, schema)
    run = TableRun(
        schema_path=schema_path,
        base=schema_path.parent if data_path is None else data_path,
        schema=schema,
        spec=spec,
        seeds=seeds,
        output=output,
        aggregation=aggregation,
        seed=seed,
        processes=processes,
    )
    # Refuse a missing table or schema now, not after the first tables were read.
    for name in needed_sets(schema, spec, aggregation)[1]:
        table_of(name, schema.edge_sets[name], run.base)
    if seeds is None and is_latent(schema.node_sets[seed_set(spec)]):
        raise TFGNNError(
            f"Node set {seed_set(spec)!r} has no table to take all seeds of.", "name a seeds file."
        )
    if (output.parent / SCHEMA_NAME).resolve() == schema_path.resolve():
        raise TFGNNError(
            f"The samples' schema would be written over {schema_path}.",
            "write the samples into another folder.",
        )
    return run


def sample_tables(
    run: TableRun, progress: Progress = lambda what, done, total: None
) -> tuple[int, int]:
    """Sample from tables, which are loaded into memory, and write the missing shards:

    1. `Marker.begin` checks existing shards, and writes the marker before the first shard.
    2. Write each missing shard atomically.
    3. Write the schema of the samples.
    4. `Marker.end` counts all records, then removes the marker.

    A kill leaves the marker, so the next run resumes. Without the order of 1 and 2, shards of
    another run could be mixed in.

    Returns: the number of samples in all shards, and the number in shards that existed before.
    Raises: TFGNNError.
    """
    # 1. Check existing shards, and write the marker.
    marker = Marker(run.output, run.state())
    with marker.begin() as done:
        seeds, timed = (None, False) if run.seeds is None else load_seeds(run.seeds)
        ids = [] if seeds is None else seeds.seed_ids
        read = read_tables(run.base, progress)
        graph = load_graph(run.schema, run.spec, read, seed_ids=ids, aggregation=run.aggregation)
        # 2. The missing shards. 3. The schema of the samples.
        counts = sample_graph(run, graph, seeds, timed, done, progress)
        # 4. Count all records, and remove the marker.
        marker.end(counts[0])
    return counts


def sample_graph(
    run: Run,
    graph: Graph,
    seeds: Seeds | None,
    timed: bool,
    done: set[Path],
    progress: Progress = lambda what, done, total: None,
) -> tuple[int, int]:
    """Write the missing shards of a run, and the schema of its samples.

    seeds: None for every node of the seed set. timed: whether seeds have times. done: existing
    shards. Returns: as `write_shards`. Raises: TFGNNError.
    """
    start = seed_set(run.spec)
    nodes = graph.node_sets[start]
    # A latent set has no table, so no row can be missing.
    if seeds is not None and start not in graph.latent:
        missing = {id for id in seeds.seed_ids if nodes.row_N[nodes.number[id]] < 0}
        if missing:
            warn_missing(start, True, len(missing), shown_id(min(missing)))
    # Nodes that only edges name have no row, and are no seeds.
    if seeds is None:
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
    paths = shard_paths(run.output)

    def draw(samples: Seeds) -> Iterator[bytes]:
        return assembler.records(sampler.sample(samples))

    shards = dict(zip(paths, seeds.shards(len(paths)), strict=True))
    counts = write_shards(shards, draw, done, run.processes, progress)
    write_schema(run.output, assembler.schema)
    return counts


def warn_missing(node_set: str, is_seed: bool, count: int, example: str) -> None:
    """Warn of nodes without a row, which are in no sample. is_seed: whether they are seeds, or
    endpoints of sampled edges."""
    logger.warning(
        "tfgnn_seeds_without_row" if is_seed else "tfgnn_nodes_without_row",
        node_set=node_set,
        nodes=count,
        example=example,
        meaning="their samples are empty" if is_seed else "edges to and from them are left out",
    )


def sample_records(sampler: Sampler, assembler: Assembler, seeds: Seeds) -> Iterator[bytes]:
    """Yield the records of samples, drawn in batches."""
    return in_batches(seeds, lambda some: assembler.records(sampler.sample(some)))


def write_schema(output: Path, schema: GraphSchema) -> None:
    """Write the schema of samples to their folder."""
    write_durably(output.parent / SCHEMA_NAME, schema_text(schema).encode())


class Marker:
    """A file next to the shards of an unfinished run. Owner: the run.

    It has the run's request and the state of its input, so that no other run continues its shards.
    """

    def __init__(self, output: Path, state: Mapping[str, Any]) -> None:
        self._output = output
        self._state = dict(state)

    @classmethod
    def read_unfinished(cls, output: Path) -> dict[str, Any]:
        """The state in the marker of a stopped run to this output; empty if there is no shard or no
        marker."""
        if any(path.exists() for path in shard_paths(output)):
            try:
                found = json.loads(cls._path(output).read_text())
            except (OSError, ValueError):
                found = None
            if isinstance(found, dict):
                return found
        return {}

    @staticmethod
    def _path(output: Path) -> Path:
        return output.with_name(f".{output.name}.run")

    @contextmanager
    def begin(self) -> Iterator[set[Path]]:
        """Write the marker. Yields: the run's existing shards.

        A run that fails before its first shard leaves no file. Raises: TFGNNError if there are
        shards of another run, or of a finished run.
        """
        there = {path for path in shard_paths(self._output) if path.exists()}
        # Existing shards must be of this run.
        if there and self.read_unfinished(self._output) != self._state:
            raise TFGNNError(
                f"{min(there)} already exists, from another run or a finished one.",
                "remove it and its other shards, or choose another name.",
            )
        folder, mark = self._output.parent, self._path(self._output)
        is_new = not folder.exists()
        make_folder_of(self._output)
        try:
            write_durably(mark, json.dumps(self._state).encode())
        except OSError as error:
            raise TFGNNError(
                f"{mark} cannot be written: {error.strerror}.", "choose another path."
            ) from None
        try:
            yield there
        except BaseException:
            # Without a shard there is nothing to resume.
            if not any(path.exists() for path in shard_paths(self._output)):
                mark.unlink(missing_ok=True)
                if is_new and not any(folder.iterdir()):
                    folder.rmdir()
            raise

    def end(self, want: int) -> None:
        """Count the records of all shards, then remove the marker: the run is finished. Raises:
        TFGNNError if their number is wrong."""
        # Runners and killed processes may lose or repeat records without an error.
        count = 0
        for path in shard_paths(self._output):
            count += sum(len(block.start_R) for block in read_blocks(path))
        if count != want:
            raise TFGNNError(
                f"{self._output} has {count} records for {want} seeds.",
                "remove its shards and run it again; look at the runner's log.",
            )
        self._path(self._output).unlink()
