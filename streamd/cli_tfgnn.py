"""The commands on TensorFlow GNN's formats."""

from pathlib import Path
from typing import Annotated

import typer

from streamd.cli_options import ConfigOption, DataOption, err, out, settings_of
from streamd.errors import SettingsError
from streamd.telemetry.progress import ProgressLine

tfgnn_app = typer.Typer(
    help="TensorFlow GNN's formats: schema, sample, random.", no_args_is_help=True
)

SCHEMA = typer.Option("--graph-schema", help="A GraphSchema, or a folder with one .pbtxt.")
SPEC = typer.Option("--sampling-spec", help="A SamplingSpec, text or binary.")
OUTPUT = typer.Option(
    "--output-samples", "--output", help="A TFRecord file, or shards such as samples.tfrecord@10."
)
DATA = typer.Option("--data-path", help="Folder of the tables; that of the schema otherwise.")
SEEDS = typer.Option(
    "--input-seeds", "--seeds", help="A table with ids and maybe times; every node otherwise."
)
AGGREGATION = typer.Option(
    "--edge-aggregation-method",
    help="edge: the edges walked along; node: all between the nodes of a sample.",
)
SEED = typer.Option("--random-seed", min=0, help="Seed of the draws.")
RUNNER = typer.Option(
    "--runner",
    help="Run as a pipeline of Apache Beam on this runner, such as DirectRunner; further options "
    "are Beam's. In memory otherwise.",
)
REVERSED = typer.Option(
    "--reversed", help="Also each edge set from target to source, as rev_<its name>."
)


@tfgnn_app.command("schema")
def tfgnn_schema(
    reversed_: Annotated[bool, REVERSED] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Print the GraphSchema of the declared sets, or of a log where nothing is declared."""
    from streamd.exchange.tfgnn.declared import declared_sets, graph_schema
    from streamd.exchange.tfgnn.schema import schema_text
    from streamd.segments.reader import LogReader

    # A log that is there must have the sets that are declared.
    settings = settings_of(config, data_dir)
    log = LogReader.open(settings.data_dir, keep_keys=False)
    declared = declared_sets(settings, None if log is None else log.state.schema)
    schema = graph_schema(declared, declared.edge_sets if reversed_ else ())
    out.print(schema_text(schema), end="", soft_wrap=True, markup=False, highlight=False)


@tfgnn_app.command(
    "sample",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        # TensorFlow GNN's own sampler has the same options with underscores.
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
def tfgnn_sample(
    context: typer.Context,
    graph_schema: Annotated[Path, SCHEMA],
    sampling_spec: Annotated[Path, SPEC],
    output_samples: Annotated[Path, OUTPUT],
    data_path: Annotated[Path | None, DATA] = None,
    input_seeds: Annotated[Path | None, SEEDS] = None,
    edge_aggregation_method: Annotated[str, AGGREGATION] = "edge",
    random_seed: Annotated[int, SEED] = 0,
    runner: Annotated[str | None, RUNNER] = None,
) -> None:
    """Sample subgraphs from unigraph tables; a run that was stopped goes on."""
    from streamd.exchange.tfgnn.sampled import plan_run, sample_tables

    if context.args and runner is None:
        raise SettingsError(
            f"{context.args[0]} is no option without --runner, as all further ones are Beam's.",
            "leave it out, or name a runner.",
        )
    run = plan_run(
        graph_schema,
        sampling_spec,
        output_samples,
        data_path=data_path,
        seeds=input_seeds,
        aggregation=edge_aggregation_method,
        seed=random_seed,
    )
    if runner is not None:
        from streamd.exchange.tfgnn.beam import sample_with_beam

        count, kept = sample_with_beam(run, runner, context.args), 0
    else:
        with ProgressLine(err, "reading tables", "rows") as line:
            count, kept = sample_tables(
                run,
                lambda what, at, of: line.of(
                    what, at, of, "samples" if what == "sampling" else "rows"
                ),
            )
    there = f", {kept:,} of them there before" if kept else ""
    out.print(f"{count:,} samples in {output_samples}{there}", soft_wrap=True, markup=False)


@tfgnn_app.command("random")
def tfgnn_random(
    graph_schema: Annotated[Path, SCHEMA],
    output: Annotated[
        Path, typer.Option(help="A TFRecord file, or shards such as graphs.tfrecord@10.")
    ],
    count: Annotated[int, typer.Option(min=1, help="Graphs to write.")] = 1000,
    random_seed: Annotated[int, SEED] = 0,
) -> None:
    """Write graphs of a schema with everything drawn at random."""
    from streamd.exchange.tfgnn.examples import Codec
    from streamd.exchange.tfgnn.random_graphs import random_graphs
    from streamd.exchange.tfgnn.schema import read_schema

    schema = read_schema(graph_schema)
    Codec(schema).write(output, random_graphs(schema, count, seed=random_seed))
    out.print(f"{count:,} graphs in {output}", soft_wrap=True, markup=False)
