"""Sampling runs on a log, which may grow meanwhile: the read part is fixed when a run starts, and a
resumed run reads the same part."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from streamd.eventlog.reader import LogReader
from streamd.tfgnn.logs.declared import Declared, graph_schema, reverse_names
from streamd.tfgnn.logs.log_graph import load_log_graph
from streamd.tfgnn.logs.log_rows import LogCut, LogRows
from streamd.tfgnn.sampling.run import Marker, Run, sample_graph
from streamd.tfgnn.sampling.sampler import seed_set
from streamd.tfgnn.sampling.seeds import load_seeds
from streamd.tfgnn.sampling.spec import read_spec
from streamd.tfgnn.sampling.tables_graph import Progress, needed_sets
from streamd.tfgnn.schema.messages import GraphSchema
from streamd.tfgnn.schema.schema import schema_text


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSource:
    """The part of a log that a run reads: edges with start_us <= time < end_us, in microseconds,
    None for no bound. log: must not be refreshed during the run."""

    log: LogReader
    declared: Declared
    start_us: int | None = None
    end_us: int | None = None

    @property
    def first(self) -> int:
        """Id of the first event in the range."""
        log = self.log
        return log.first_edge if self.start_us is None else log.lower_bound(self.start_us)

    def cut(self) -> LogCut:
        """The cut of the log in its present state."""
        log, end_us = self.log, self.end_us
        return LogCut.of(log, log.num_edges if end_us is None else log.lower_bound(end_us))

    def begin(self, output: Path, schema: GraphSchema, request: str) -> "tuple[LogRows, Marker]":
        """Start a run, or resume the run that has written some of the shards.

        schema, request: all inputs of the samples except the log. Raises: TFGNNError if the log has
        lost events, nodes or updates since the run's start.
        """
        folder = str(self.log.data_dir.resolve())
        asked = json.dumps([request, folder, schema_text(schema), self.start_us, self.end_us])
        left = Marker.read_unfinished(output)
        # A resumed run reads the same part, though the log may have grown.
        if left.get("asked") == asked:
            cut = LogCut(**left["cut"])
            cut.check(self.log)
        else:
            cut = self.cut()
        marker = Marker(output, {"asked": asked, "cut": asdict(cut)})
        return LogRows(self.log, self.declared, cut), marker


def plan_log_run(
    declared: Declared,
    sampling_spec: Path,
    output: Path,
    *,
    with_reverse: bool = False,
    seeds: Path | None = None,
    aggregation: str = "edge",
    seed: int = 0,
    processes: int = 1,
) -> Run:
    """Read a spec and check that it fits a log. with_reverse: add the reverse of each edge set.
    Raises: TFGNNError."""
    schema = graph_schema(declared, declared.edge_sets if with_reverse else ())
    return Run(
        schema=schema,
        spec=read_spec(sampling_spec, schema, reverse_names(declared)),
        seeds=seeds,
        output=output,
        aggregation=aggregation,
        seed=seed,
        processes=processes,
    )


def sample_log(
    run: Run, source: LogSource, progress: Progress = lambda what, done, total: None
) -> tuple[int, int]:
    """Sample from a log, and write the missing shards.

    Times of seeds are in microseconds. Returns: the number of samples in all shards, and the number
    in shards that existed before. Raises: TFGNNError.
    """
    needed = needed_sets(run.schema, run.spec, run.aggregation)
    rows, marker = source.begin(run.output, run.schema, run.request)
    with marker.begin() as done:
        seeds, timed = (None, False) if run.seeds is None else load_seeds(run.seeds)
        others = {seed_set(run.spec): set() if seeds is None else set(seeds.seed_ids)}
        graph = load_log_graph(
            rows, run.schema, needed, first=source.first, others=others, progress=progress
        )
        counts = sample_graph(run, graph, seeds, timed, done, progress)
        marker.end(counts[0])
    return counts
