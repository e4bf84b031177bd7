"""The `streamd tfgnn` commands on TensorFlow GNN's formats."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamd.cli.options import (
    ConfigOption,
    DataOption,
    err,
    out,
    print_rounded,
    printable,
    settings_of,
)
from streamd.errors import SettingsError
from streamd.number_texts import count_noun
from streamd.telemetry.progress import ProgressLine

if TYPE_CHECKING:
    from streamd.settings.tree import Settings
    from streamd.tfgnn.logs.sampling_run import LogSource
    from streamd.tfgnn.logs.table_events import TableEvents, TimeOptions
    from streamd.tfgnn.sampling.tables_graph import Progress

tfgnn_app = typer.Typer(
    help="TensorFlow GNN's formats: schema, import, export, sample, show, random.",
    no_args_is_help=True,
)

SCHEMA = typer.Option("--graph-schema", help="A GraphSchema, or a folder with one .pbtxt.")
OF_TABLES = typer.Option(
    "--graph-schema", help="A GraphSchema of tables, or a folder with one; the log otherwise."
)
SPEC = typer.Option("--sampling-spec", help="A SamplingSpec, text or binary.")
# A text, because `Path` would drop the trailing / of a folder.
OUTPUT = typer.Option(
    "--output-samples",
    "--output",
    metavar="PATH",
    help="A TFRecord file, or shards such as samples.tfrecord@10.",
)
DATA = typer.Option("--data-path", help="Folder of the tables; that of the schema otherwise.")
SEEDS = typer.Option(
    "--input-seeds",
    "--seeds",
    help="A table of ids, optionally with times (microseconds for a log); every node otherwise.",
)
AGGREGATION = typer.Option(
    "--edge-aggregation-method",
    help="edge: the sampled edges; node: all edges between the nodes of a sample.",
)
SEED = typer.Option("--random-seed", min=0, help="Seed of the draws.")
PROCESSES = typer.Option(
    min=1, help="Number of sampling processes, at most one a shard; it does not change the samples."
)
RUNNER = typer.Option(
    "--runner",
    help="Run as a pipeline of Apache Beam on this runner, such as DirectRunner; further options "
    "are Beam's. In memory otherwise.",
)
REVERSED = typer.Option(
    "--reversed", help="Also each edge set from target to source, as rev_<its name>."
)

START = typer.Option(help="First time of edges, ISO 8601; the log's first otherwise.")
END = typer.Option(help="Time to end before, ISO 8601; all otherwise.")
NUMBERS = typer.Option(
    "--numbers", help="Write all features of a set as one vector, regardless of their declarations."
)


@tfgnn_app.command("schema")
def tfgnn_schema(
    reversed_: Annotated[bool, REVERSED] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Print the GraphSchema of the declared sets, or of the log if none are declared."""
    from streamd.eventlog.reader import LogReader
    from streamd.tfgnn.logs.declared import declared_sets, graph_schema
    from streamd.tfgnn.schema.schema import schema_text

    # If there is a log, it must have the declared sets.
    settings = settings_of(config, data_dir)
    log = LogReader.open(settings.data_dir, keep_keys=False)
    declared = declared_sets(settings, None if log is None else log.state.schema)
    schema = graph_schema(declared, declared.edge_sets if reversed_ else ())
    out.print(schema_text(schema), end="", soft_wrap=True, markup=False, highlight=False)


@tfgnn_app.command("import")
def tfgnn_import(
    graph_schema: Annotated[
        Path, typer.Argument(help="A GraphSchema whose sets name tables, or a folder with one.")
    ],
    topic: Annotated[
        str | None, typer.Option(help="Send to this topic; into the log of data_dir otherwise.")
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0, help="Seconds of event time per second; 0: as fast as it goes.")
    ] = 0,
    time_column: Annotated[
        str | None, typer.Option(help="Column of edges' times; #time or time otherwise.")
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(help="Unit of times as numbers; the schema's or stream.time_unit otherwise."),
    ] = None,
    first_time: Annotated[
        str | None,
        typer.Option(help="Make up times for tables without them, from this one on; ISO 8601."),
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=1e-6, help="From one made-up time to the next; 1 otherwise.")
    ] = None,
    data_path: Annotated[Path | None, DATA] = None,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Send the events of unigraph tables to a topic, or append them to a log while no ingest
    runs."""
    from streamd.clock import SystemClock
    from streamd.tfgnn.logs.declared import declared_sets
    from streamd.tfgnn.logs.table_events import TableEvents
    from streamd.tfgnn.logs.table_import import append_tables, send_tables
    from streamd.tfgnn.schema.schema import read_schema, schema_file

    if speed and topic is None:
        raise SettingsError("--speed needs a topic.", "name one with --topic.")
    settings, clock = settings_of(config, data_dir), SystemClock()
    options = _time_options(settings, time_column, time_unit, first_time, step_seconds)
    path = schema_file(graph_schema)

    # Read all tables before the first event is sent.
    with ProgressLine(err, "reading tables", "rows") as line:
        tables = TableEvents(
            declared_sets(settings),
            read_schema(path),
            path.parent if data_path is None else data_path,
            options,
            clock,
            lambda what, at, of: line.of(what, at, of, "rows"),
        )
        total = tables.num_events
        line.begin(f"to {topic or settings.data_dir}")
        if topic is None:
            append_tables(settings, tables, clock, lambda done: line.at(done, total))
        else:
            send_tables(settings, tables, topic, speed, clock, lambda done: line.at(done, total))
    _report_import(tables, f"sent to {topic}" if topic else f"appended to {settings.data_dir}")


def _report_import(tables: "TableEvents", where: str) -> None:
    """Print the number of events, the columns that became no feature, and the rounded values."""
    for column in tables.left_out:
        err.print(f"left out: {printable(column)}", soft_wrap=True, markup=False, highlight=False)
    print_rounded(tables.rounded.words)
    out.print(
        f"{count_noun(tables.num_nodes, 'node')} and {count_noun(tables.num_edges, 'edge')} "
        f"{where}: {tables.times}",
        soft_wrap=True,
        markup=False,
    )


def _time_options(
    settings: "Settings",
    column: str | None,
    unit: str | None,
    first_time: str | None,
    step_seconds: float | None,
) -> "TimeOptions":
    """Build the options by which rows of edges get their times. Raises: SettingsError."""
    from streamd.clock import parse_time_us
    from streamd.exchange.times import check_unit
    from streamd.tfgnn.logs.table_events import TimeOptions

    if unit is not None:
        check_unit(unit)
    # Steps are used only if the times are made up.
    if first_time is None:
        _refuse_given({"--step-seconds": step_seconds}, "needs --first-time")
    return TimeOptions(
        stream_unit=settings.stream.time_unit,
        max_ahead_seconds=settings.ingest.max_ahead_seconds,
        column=column,
        unit=unit,
        first_us=None if first_time is None else parse_time_us(first_time, "--first-time"),
        step_us=round((step_seconds or 1) * 1e6),
    )


@tfgnn_app.command("export")
def tfgnn_export(
    output: Annotated[
        str,
        typer.Argument(
            help="A new folder for schema and tables; with --samples a TFRecord file.",
        ),
    ],
    start: Annotated[str | None, START] = None,
    end: Annotated[str | None, END] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="Format of tables: tfrecord, or csv.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=99_999, help="Files of each table; one otherwise.")
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="Write training samples of events by this SamplingSpec, no tables."),
    ] = None,
    edge_set: Annotated[
        str | None, typer.Option(help="For --samples: the edge set of the events.")
    ] = None,
    negatives: Annotated[
        int | None,
        typer.Option(min=0, max=10_000, help="For --samples: wrong targets an event; 1 otherwise."),
    ] = None,
    edge_aggregation_method: Annotated[str, AGGREGATION] = "edge",
    random_seed: Annotated[int, SEED] = 0,
    processes: Annotated[int, PROCESSES] = 1,
    reversed_: Annotated[bool, REVERSED] = False,
    numbers: Annotated[bool, NUMBERS] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Write the log as a GraphSchema with unigraph tables, as of a time; or training samples."""
    # Open the log only after the options are checked.
    log = partial(_log_source, config, data_dir, start, end, numbers)
    if samples is not None:
        _refuse_given({"--format": format_, "--shards": shards}, "is for tables, not for --samples")
        _export_samples(
            log,
            samples,
            output,
            edge_set=edge_set,
            negatives=1 if negatives is None else negatives,
            with_reverse=reversed_,
            aggregation=edge_aggregation_method,
            seed=random_seed,
            processes=processes,
        )
        return
    of_samples = {
        "--edge-set": edge_set,
        "--negatives": negatives,
        "--edge-aggregation-method": edge_aggregation_method != "edge",
        "--random-seed": random_seed > 0,
        "--processes": processes > 1,
    }
    _refuse_given(of_samples, "needs --samples")
    _export_tables(log, Path(output), format_ or "tfrecord", shards, reversed_)


def _export_samples(log: "Callable[[], LogSource]", spec: Path, name: str, **asked: Any) -> None:
    """Write training samples.

    log: opens the log. name: of the output. asked: further arguments of `plan_link_run`.
    """
    from streamd.tfgnn.logs.link_samples import plan_link_run, sample_links
    from streamd.tfgnn.records.shards import output_path

    output = output_path(name)
    # The log is read once before it is sampled; one line shows the progress of both.
    with ProgressLine(err, "reading the log", "events") as line:
        source = log()
        run = plan_link_run(source.declared, spec, output, **asked)

        def report(what: str, at: int, of: int) -> None:
            line.of(what, at, of, "samples" if what == "sampling" else "events")

        count, kept = sample_links(run, source, report)
    _print_counts(count, kept, output)


def _print_counts(count: int, kept: int, output: Path) -> None:
    """Print the number of samples, and how many of them existed before this run."""
    there = f", {kept:,} of them written before" if kept else ""
    out.print(f"{count_noun(count, 'sample')} in {output}{there}", soft_wrap=True, markup=False)


def _export_tables(
    log: "Callable[[], LogSource]", output: Path, format_: str, shards: int | None, reversed_: bool
) -> None:
    """Write a log's schema and tables. log: opens the log."""
    from streamd.tfgnn.logs.log_rows import LogRows
    from streamd.tfgnn.logs.table_export import FORMATS, TableOptions, export_tables

    # Check before the log is read, which may take minutes.
    if format_ not in FORMATS:
        raise SettingsError(f"--format is {format_!r}.", f"one of {', '.join(FORMATS)}.")
    with ProgressLine(err, "reading the log", "nodes") as line:
        source = log()
        rows = LogRows(source.log, source.declared, source.cut())
        options = TableOptions(
            first=source.first, format=format_, shards=shards, with_reverse=reversed_
        )
        done = export_tables(
            rows, output, options, lambda what, at, of: line.of(what, at, of, what.split()[0])
        )
    out.print(
        f"{count_noun(done.num_nodes, 'node')}, {count_noun(done.num_edges, 'edge')} in {output}",
        soft_wrap=True,
        markup=False,
    )


def _log_source(
    config: Path | None, data_dir: Path | None, start: str | None, end: str | None, numbers: bool
) -> "LogSource":
    """Open the part of the log in a range of times. Raises: StreamdError if there is no log."""
    from streamd.cli.maintenance import open_log
    from streamd.clock import parse_time_us
    from streamd.tfgnn.logs.declared import as_numbers, declared_sets
    from streamd.tfgnn.logs.sampling_run import LogSource

    settings = settings_of(config, data_dir)
    log = open_log(settings.data_dir)
    declared = declared_sets(settings, log.state.schema)
    return LogSource(
        log=log,
        declared=as_numbers(declared) if numbers else declared,
        start_us=None if start is None else parse_time_us(start, "--start"),
        end_us=None if end is None else parse_time_us(end, "--end"),
    )


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
    sampling_spec: Annotated[Path, SPEC],
    output_samples: Annotated[str, OUTPUT],
    graph_schema: Annotated[Path | None, OF_TABLES] = None,
    data_path: Annotated[Path | None, DATA] = None,
    input_seeds: Annotated[Path | None, SEEDS] = None,
    edge_aggregation_method: Annotated[str, AGGREGATION] = "edge",
    random_seed: Annotated[int, SEED] = 0,
    processes: Annotated[int, PROCESSES] = 1,
    runner: Annotated[str | None, RUNNER] = None,
    start: Annotated[str | None, START] = None,
    end: Annotated[str | None, END] = None,
    reversed_: Annotated[bool, REVERSED] = False,
    numbers: Annotated[bool, NUMBERS] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Sample subgraphs from the log, or from unigraph tables; the same command resumes an
    interrupted run."""
    from streamd.tfgnn.records.shards import output_path

    if runner is not None:
        _refuse_given({"--processes": processes > 1}, "is not for Beam's runners")
    # Options of a log and of tables exclude each other.
    if graph_schema is None:
        _refuse_given({"--data-path": data_path, "--runner": runner}, "needs --graph-schema")
    else:
        of_log = {"--start": start, "--end": end, "--reversed": reversed_, "--numbers": numbers}
        _refuse_given({**of_log, "--data-dir": data_dir}, "is for a log, not for --graph-schema")
    _refuse_further(context.args, runner)
    output = output_path(output_samples)
    asked: dict[str, Any] = {
        "seeds": input_seeds,
        "aggregation": edge_aggregation_method,
        "seed": random_seed,
        "processes": processes,
    }
    with ProgressLine(err, "reading", "rows") as line:

        def report(what: str, at: int, of: int) -> None:
            line.of(what, at, of, "samples" if what == "sampling" else "rows")

        if graph_schema is None:
            source = _log_source(config, data_dir, start, end, numbers)
            count, kept = _sample_log(source, sampling_spec, output, reversed_, asked, report)
        else:
            # Beam's workers import these modules, which load no more than tables need.
            from streamd.tfgnn.sampling.run import plan_run, sample_tables

            run = plan_run(graph_schema, sampling_spec, output, data_path=data_path, **asked)
            if runner is None:
                count, kept = sample_tables(run, report)
            else:
                from streamd.tfgnn.beam.pipeline import sample_with_beam

                count, kept = sample_with_beam(run, runner, context.args), 0
    _print_counts(count, kept, output)


def _sample_log(
    source: "LogSource",
    spec: Path,
    output: Path,
    with_reverse: bool,
    asked: dict[str, Any],
    progress: "Progress",
) -> tuple[int, int]:
    """Sample from a log. Returns: the counts of `sample_log`."""
    from streamd.tfgnn.logs.sampling_run import plan_log_run, sample_log

    run = plan_log_run(source.declared, spec, output, with_reverse=with_reverse, **asked)
    return sample_log(run, source, progress)


def _refuse_further(args: list[str], runner: str | None) -> None:
    """Refuse unknown options, which are Beam's, if there is no runner. Raises: SettingsError."""
    if args and runner is None:
        raise SettingsError(
            f"{args[0]} is unknown: only with --runner are further options passed on, to Beam.",
            "leave it out, or name a runner.",
        )


def _refuse_given(options: dict[str, Any], why: str) -> None:
    """Refuse options that contradict another one. why: ends the error's sentence. Raises:
    SettingsError."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise SettingsError(f"{name} {why}.", "leave one of them out.")


@tfgnn_app.command("show")
def tfgnn_show(
    file: Annotated[
        Path, typer.Argument(help="TFRecord or CSV: a file, shards as base@10, or a glob.")
    ],
    graph_schema: Annotated[Path | None, SCHEMA] = None,
    set_: Annotated[
        str | None, typer.Option("--set", help="The file is the table of this set of the schema.")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Records before the first one shown.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Records to show.")] = 3,
    values: Annotated[
        int, typer.Option(min=1, help="Most items of a set, and values of a feature.")
    ] = 8,
) -> None:
    """Print some records of a file: graphs, examples of any kind, rows of unigraph tables."""
    from streamd.tfgnn.schema.schema import read_schema
    from streamd.tfgnn.tables.listing import Part, lines_of

    if graph_schema is None:
        _refuse_given({"--set": set_}, "needs --graph-schema")
    schema = None if graph_schema is None else read_schema(graph_schema)
    for line in lines_of(file, Part(skip=skip, count=count, values=values), schema, set_):
        out.print(printable(line), soft_wrap=True, markup=False, highlight=False)


@tfgnn_app.command("random")
def tfgnn_random(
    graph_schema: Annotated[Path, SCHEMA],
    output: Annotated[
        str,
        typer.Option(metavar="PATH", help="A TFRecord file, or shards such as graphs.tfrecord@10."),
    ],
    count: Annotated[int, typer.Option(min=1, help="Graphs to write.")] = 1000,
    random_seed: Annotated[int, SEED] = 0,
) -> None:
    """Write random graphs of a schema."""
    from streamd.tfgnn.records.examples import Codec
    from streamd.tfgnn.records.shards import output_path
    from streamd.tfgnn.sampling.random_graphs import random_graphs
    from streamd.tfgnn.schema.schema import read_schema

    path, schema = output_path(output), read_schema(graph_schema)
    Codec(schema).write(path, random_graphs(schema, count, seed=random_seed))
    out.print(f"{count_noun(count, 'graph')} in {path}", soft_wrap=True, markup=False)
