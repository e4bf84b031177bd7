"""Sampling as an Apache Beam pipeline, for tables that no single machine can hold. Only this module
imports apache_beam, and only when it runs.

No collection of the pipeline is read twice: the reads join one chain, which ends at the shards.
Files are read and written by our own code, since some runners silently lose data of Beam's readers
and writers. Records are counted at the end for the same reason.
"""

import uuid
from functools import partial
from pathlib import Path
from typing import Any

from streamd.errors import TFGNNError
from streamd.tfgnn.beam.blocks import TableFile, plain_rows, read_file
from streamd.tfgnn.beam.steps import (
    Plan,
    between,
    by_sample,
    expand,
    join_rows,
    levels,
    name_seeds,
    no_samples,
    query_edges,
    write_shard,
)
from streamd.tfgnn.records.shards import find_files
from streamd.tfgnn.sampling.assembly import is_latent, sampled_schema
from streamd.tfgnn.sampling.run import Marker, TableRun, warn_missing, write_schema
from streamd.tfgnn.sampling.sampler import Has, check_columns, seed_set
from streamd.tfgnn.sampling.tables_graph import (
    check_latent,
    needed_sets,
    table_of,
)
from streamd.tfgnn.schema.messages import NodeSet
from streamd.tfgnn.schema.schema import all_sets, has_table, read_schema, schema_file
from streamd.tfgnn.tables.reading import Rows, read_seeds, read_table

BUCKET_BYTES = 32 << 20
"""Table bytes per bucket; in arrays it takes a few times as much of a worker's memory."""
MIN_BUCKETS = 8
REFUSED = {
    "daskrunner": "it runs one branch of a pipeline and loses the others without an error",
}
"""Runner -> the reason for its refusal. These were tested, and gave wrong results."""


def sample_with_beam(run: TableRun, runner: str, options: list[str]) -> int:
    """Sample from tables by a pipeline, and wait for its end.

    runner: name of Beam's runner. options: further options of Beam's command line. Workers need
    streamd, and the folders of tables and output at the same paths. Returns: the number of samples.
    Raises: TFGNNError if the runner is refused, Beam is not installed, a table lacks a column that
    the spec uses, or a record is missing at the end.
    """
    why = REFUSED.get(runner.lower().rpartition(".")[2])
    if why is not None:
        raise TFGNNError(f"The runner {runner} is refused: {why}.", "take another one.")
    try:
        import apache_beam  # noqa: F401
    except ImportError:
        raise TFGNNError(
            "Apache Beam is not installed.",
            "pip install 'streamd-gnn[beam]', or leave --runner out.",
        ) from None

    # The marker keeps other runs from this output. A pipeline does not resume: it writes all
    # shards.
    marker = Marker(run.output, run.state())
    with marker.begin() as done:
        if done:
            raise TFGNNError(
                f"Some shards of {run.output} already exist.",
                "remove them, or choose a new name.",
            )
        count = _sample(run, runner, options)
        marker.end(count)
    return count


def _sample(run: TableRun, runner: str, options: list[str]) -> int:
    """Run the pipeline. Returns: the expected number of samples. Raises: TFGNNError."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    files = _Files(run)
    has, timed = files.check()
    plan = Plan(
        schema=run.schema,
        spec=run.spec,
        has=has,
        seed=run.seed,
        is_timed=timed,
        buckets=max(MIN_BUCKETS, files.num_bytes // BUCKET_BYTES),
        output=run.output.resolve(),
        run_id=uuid.uuid4().hex,
    )
    try:
        with beam.Pipeline(runner=runner, options=PipelineOptions(options)) as pipeline:
            build(pipeline, run, plan, files)
        write_schema(run.output, sampled_schema(run.schema, seed_set(run.spec), timed))
        for name, is_seed, num, example in plan.read_missing():
            warn_missing(name, is_seed, num, example)
        return files.count_seeds()
    finally:
        # Scratch files of lost workers.
        for path in run.output.parent.glob(f".{plan.run_id}.*"):
            path.unlink(missing_ok=True)


def build(pipeline: Any, run: TableRun, plan: Plan, files: "_Files") -> None:
    """Add the steps to a pipeline."""
    import apache_beam as beam

    def read(label: str, some: list[TableFile]) -> Any:
        created = pipeline | f"files of {label}" >> beam.Create(some)
        return created | f"read {label}" >> beam.FlatMap(partial(read_file, buckets=plan.buckets))

    def group(label: str, *parts: Any) -> Any:
        joined = parts | f"with {label}" >> beam.Flatten()
        return joined | f"group {label}" >> beam.GroupByKey()

    # "plan" | The chain begins with an empty block for each shard, and with the seeds.
    shards = pipeline | "plan" >> beam.Create([plan]) | "shards" >> beam.FlatMap(no_samples)
    flow = group("seeds", shards, read("seeds", files.seeds))
    flow = flow | "name seeds" >> beam.FlatMap(partial(name_seeds, plan=plan))
    # Join the samples with the edges of each level, and draw.
    for i, ops in enumerate(levels(run.spec)):
        label = f"edges {i}"
        edges = read(label, files.edges({op.edge_set_name for op in ops}))
        step = beam.FlatMap(partial(expand, plan=plan, ops=ops))
        flow = group(label, flow, edges) | f"expand {i}" >> step
    # Replace the drawn edges by all edges between the nodes of a sample.
    if run.aggregation == "node":
        flow = flow | "to samples" >> beam.FlatMap(partial(by_sample, plan=plan))
        ask = beam.FlatMap(partial(query_edges, plan=plan, edge_sets=files.edge_sets))
        flow = group("samples", flow) | "ask" >> ask
        edges = read("all edges", files.edges(set(files.edge_sets)))
        step = beam.FlatMap(partial(between, plan=plan))
        flow = group("all edges", flow, edges) | "between" >> step
    # Join the reached nodes with their rows, and write the shards.
    rows = beam.FlatMap(partial(join_rows, plan=plan))
    flow = group("nodes", flow, read("nodes", files.nodes())) | "rows" >> rows
    write = beam.FlatMap(partial(write_shard, plan=plan))
    group("shards", flow) | "write" >> write  # noqa: B018


class _Files:
    """The input files of a run. Immutable."""

    def __init__(self, run: TableRun) -> None:
        self._run = run
        self.node_sets, self.edge_sets = needed_sets(run.schema, run.spec, run.aggregation)
        if run.seeds is None:
            start = seed_set(run.spec)
            self.seeds = self._of("every", start, run.schema.node_sets[start])
        else:
            none = NodeSet()
            self.seeds = [
                TableFile("seeds", "seeds", path.resolve(), none) for path in find_files(run.seeds)
            ]

    def _of(self, kind: str, name: str, one: Any) -> list[TableFile]:
        """The files of a set's table, as absolute paths, since workers may run in other folders."""
        path = table_of(name, one, self._run.base)
        return [TableFile(kind, name, found.resolve(), one) for found in find_files(path)]

    def edges(self, names: set[str]) -> list[TableFile]:
        """The files of some edge sets."""
        sets = self._run.schema.edge_sets
        return [file for name in sorted(names) for file in self._of("edges", name, sets[name])]

    def nodes(self) -> list[TableFile]:
        """The files of all node sets that have a table."""
        found = []
        for name in self.node_sets:
            one = self._run.schema.node_sets[name]
            if not is_latent(one):
                found += self._of("nodes", name, one)
            else:
                check_latent(name, one.features)
        return found

    @property
    def num_bytes(self) -> int:
        """Size of all tables in bytes."""
        every = [*self.edges(set(self.edge_sets)), *self.nodes()]
        return sum(file.path.stat().st_size for file in every)

    def check(self) -> tuple[dict[str, Has], bool]:
        """Refuse tables without a column that the spec needs, checked by their first rows.

        Returns: the columns of each edge set, and whether the seeds have times. Raises: TFGNNError.
        """
        timed = False
        if self._run.seeds is not None:
            first = next(read_seeds(self._run.seeds), None)
            timed = first is not None and first.time is not None
        sets = {}
        for name in self.edge_sets:
            rows = self._first(name)
            # An empty table lacks no column.
            sets[name] = Has(
                rows is None or rows.weight is not None, rows is None or rows.time is not None
            )
        check_columns(self._run.spec, sets, timed)
        return sets, timed

    def _first(self, name: str) -> Rows | None:
        """The first rows of an edge set's table, None if it is empty."""
        one = self._run.schema.edge_sets[name]
        return next(read_table(one, table_of(name, one, self._run.base)), None)

    def count_seeds(self) -> int:
        """The expected number of records."""
        if self._run.seeds is not None:
            return sum(rows.num for rows in read_seeds(self._run.seeds))
        total = 0
        for file in self.seeds:
            total += sum(rows.num for rows in read_table(file.one, file.path))
        return total


def read_graph(pipeline: Any, path: Path, data_path: Path | None = None) -> dict[str, Any]:
    """Read the unigraph tables of a schema in your own pipeline.

    Args:
        pipeline: beam.Pipeline.
        path: Path of the schema, or of a folder with one .pbtxt.
        data_path: Path of the tables' folder. Default None: the schema's.

    Returns: dict of collections, for the sets that have a table: `nodes/<set>` of (id, features),
    `edges/<set>` of (source, target, features), and `context` of features. Features are a dict by
    the schema's names, with Python's numbers, bytes and lists, and with `#weight` and `#time` if
    edges have them.

    Raises:
        TFGNNError: a table is missing, or the schema is inconsistent.
    """
    import apache_beam as beam

    schema_path = schema_file(path)
    schema = read_schema(schema_path)
    base = schema_path.parent if data_path is None else data_path
    found = {}
    for kind, name, one in all_sets(schema):
        if not has_table(one):
            continue
        label = {"node set": f"nodes/{name}", "edge set": f"edges/{name}"}.get(kind, kind)
        paths = find_files(table_of(name or kind, one, base))
        files = [TableFile(kind, name, file.resolve(), one) for file in paths]
        created = pipeline | f"files of {label}" >> beam.Create(files)
        found[label] = created | f"read {label}" >> beam.FlatMap(plain_rows)
    return found
