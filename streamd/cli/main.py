"""The command line of streamd: each command assembles its parts and prints the result.

An error that streamd raises on purpose is printed as one line, with exit status 2. A command
imports the modules that it needs only when it runs, so that `streamd --help` loads neither torch
nor numba.
"""

import io
import json
import os
import sys
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from streamd import __version__
from streamd.cli.backtest import GridCommand, backtest
from streamd.cli.changelog import changelog_app
from streamd.cli.deadletter import letters_app
from streamd.cli.embeddings_command import embeddings
from streamd.cli.erase import erase
from streamd.cli.export_command import export
from streamd.cli.import_ import import_
from streamd.cli.init import init
from streamd.cli.lead import lead
from streamd.cli.models import models_app
from streamd.cli.options import (
    ConfigOption,
    DataOption,
    check_role,
    err,
    error_text,
    make_kernels_ready,
    out,
    printable_lines,
    quiet_client,
    settings_of,
)
from streamd.cli.produce_command import produce
from streamd.cli.sources import sources_app
from streamd.cli.sql_command import sql
from streamd.cli.store import backup, restore, verify
from streamd.cli.table_output import join_help_lines, print_listing, print_table
from streamd.cli.tfgnn import tfgnn_app
from streamd.cli.tguf import tguf_app
from streamd.cli.trial_report import trials_app
from streamd.errors import SettingsError, StreamdError
from streamd.settings.loading import check_access, effective, load_settings
from streamd.settings.notation import as_written
from streamd.telemetry.progress import ProgressLine

app = typer.Typer(
    help="A streaming online-learning daemon for temporal graphs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(tguf_app, name="tguf")
app.add_typer(tfgnn_app, name="tfgnn")
app.add_typer(changelog_app, name="changelog")
app.add_typer(letters_app, name="deadletter")
app.add_typer(models_app, name="models")
app.add_typer(sources_app, name="sources")
app.add_typer(trials_app, name="trials")


app.command()(init)


@app.command()
def run(
    config: ConfigOption = None,
    data_dir: DataOption = None,
    role: Annotated[
        str | None,
        typer.Option(help="Run only ingest, train, serve, archive, follow, score or trial."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of a further server on the same directory, as serve-2.")
    ] = None,
) -> None:
    """Run the daemon until a signal: ingest, train and serve; the archive if other machines follow
    the log, the scoring of events if there is a topic for scores, and the figures of a trial if
    one is set."""
    from streamd.daemon.run_role import RUN_AGAIN, run_role
    from streamd.daemon.supervisor import Supervisor
    from streamd.processes import PYTHON, torchrun_rank
    from streamd.roles import check_name
    from streamd.telemetry.logs import configure_logs

    settings = settings_of(config, data_dir)
    check_access(settings.server)
    rank = torchrun_rank(os.environ)
    if rank is not None and role != "train":
        raise SettingsError(
            "torchrun starts the ranks of the train role only.",
            "give --role train; run ingest and serve without torchrun.",
        )

    # Without a role this process supervises the processes of all roles.
    read = partial(settings_of, config, data_dir)
    if role is None:
        if name is not None:
            raise SettingsError("--name is only for a server.", "give --role serve too.")
        configure_logs(settings.telemetry.log_level, settings.telemetry.log_format, "supervisor")
        raise typer.Exit(Supervisor(settings, read=read).run())

    # With a role this process runs that role, alone or as the supervisor's child.
    check_role(role)
    if name is not None:
        check_name(role, name)

    # Several ranks on this machine need torchrun's agent, unless torchrun started this process.
    if role == "train" and settings.training.ranks > 1 and rank is None:
        from streamd.daemon.torchrun import run_ranks

        raise typer.Exit(run_ranks(settings))
    status = run_role(settings, role, name or "", read)
    if status == RUN_AGAIN:
        # Exec keeps the process, so that no service manager counts a failure, and releases its
        # locks.
        os.execv(PYTHON[0], sys.orig_argv)
    raise typer.Exit(status)


@app.command()
def demo(
    stream: Annotated[str, typer.Option(help="wikipedia, taxi or mathoverflow.")] = "wikipedia",
    speed: Annotated[str, typer.Option(help='Event-time hours per second, or "max".')] = "1",
    exit_: Annotated[
        bool, typer.Option("--exit", help="End after the stream with a table of scores.")
    ] = False,
    days: Annotated[int | None, typer.Option(min=1, help="Play only the first days.")] = None,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Compare with a model frozen after the first 300 events."),
    ] = False,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="A Kafka broker to use instead of starting one.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the server, 0 for a free one.")] = 8000,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data; a new temporary folder otherwise.")
    ] = None,
    trial: Annotated[
        bool,
        typer.Option(
            "--trial",
            help="Compare the champion with last midnight's version and the rule in a trial of "
            "simulated users.",
        ),
    ] = False,
) -> None:
    """Play a real month through the whole daemon and watch it learn."""
    from streamd.demo.play import play

    status = play(stream, speed, exit_, days, cold, bootstrap_servers, port, data_dir, trial)
    raise typer.Exit(status)


app.command()(produce)
app.command()(sql)
app.command()(embeddings)
app.command()(export)
app.command(cls=GridCommand)(backtest)
app.command("import")(import_)


@app.command()
def train(
    static: Annotated[
        bool, typer.Option("--static", help="Train on the log as a static graph; required.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="sage, gat or gcn; model.name otherwise.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training edges.")] = 10,
    folder: Annotated[
        Path | None, typer.Option("--out", help="A new folder for the best weights.")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Train GraphSAGE, GAT or GCN on the log as a static graph; other roles may run on it
    meanwhile."""
    if not static:
        raise SettingsError(
            "streamd train needs --static.", "the live model is learned by `streamd run`."
        )
    from streamd.cli.maintenance import train_static

    # The option overrides the setting `model.name`, with the same checks.
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    settings = load_settings(config, overrides | ({} if model is None else {"model.name": model}))[
        0
    ]

    # Print the figures of each epoch as soon as they are known.
    make_kernels_ready()
    with ProgressLine(err, "opening the log", "edges") as line:
        for text in train_static(settings, epochs, folder, line.of):
            out.print(text, soft_wrap=True, markup=False, highlight=False)


@app.command()
def compact(
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds to wait for the roles that still hold deleted events, and for store and "
            "changelog.",
        ),
    ] = 60,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Overwrite deleted data (keys, edges, features) in log, replay store, versions and local dead
    letters."""
    from streamd.cli.compaction import compact_log

    settings = settings_of(config, data_dir)
    with ProgressLine(err, "compacting", "segments") as line:
        done, text = compact_log(settings, monotonic() + wait, line)
    out.print(text, soft_wrap=True)
    raise typer.Exit(0 if done else 1)


app.command()(erase)
app.command()(verify)
app.command()(lead)
app.command()(backup)
app.command()(restore)


@app.command(name="config")
def show_config(
    from_schema: Annotated[
        Path | None,
        typer.Option(help="A GraphSchema of TensorFlow GNN: print settings to start from instead."),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the settings file instead.")
    ] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Print all settings in force and where each comes from."""
    if schema:
        from streamd.settings.json_schema import settings_schema

        out.file.write(json.dumps(settings_schema(), indent=1) + "\n")
        return
    if from_schema is not None:
        from streamd.tfgnn.logs.settings import settings_of_schema
        from streamd.tfgnn.schema.schema import read_schema, schema_file

        # Comments in the text name omissions, so that all of it may become a settings file.
        path = schema_file(from_schema)
        text = printable_lines(settings_of_schema(read_schema(path), path.parent))
        out.print(text, end="", soft_wrap=True, markup=False, highlight=False)
        return
    settings, origin = load_settings(config, {} if data_dir is None else {"data_dir": data_dir})
    rows = [(key, as_written(value), origin[key]) for key, value in effective(settings).items()]
    print_listing(out, ("setting", "value", "from"), rows)
    try:
        check_access(settings.server)
    except SettingsError as error:
        text = f"`streamd run` refuses these settings: {error_text(error)}"
        err.print(text, soft_wrap=True, markup=False, highlight=False)


@app.command()
def doctor(config: ConfigOption = None, data_dir: DataOption = None) -> None:
    """Check the requirements of a run, and compile the kernels; exit status 1 if one stops a
    run."""
    from streamd.cli.doctor_checks import examine

    settings = settings_of(config, data_dir)
    healthy = True
    _print_check("check", Text("result"), "finding")
    # Print each result at once: the kernels alone may take half a minute.
    for check in examine(settings):
        healthy &= check.good
        _print_check(check.name, Text(*check.result), check.seen)
    raise typer.Exit(0 if healthy else 1)


def _print_check(name: str, result: Text, seen: str) -> None:
    """Print a row of a table, with columns of the same width each time. seen: printable."""
    row = Table(box=None, show_header=False)
    row.add_column(width=16)
    row.add_column(width=6)
    row.add_column(overflow="fold")
    row.add_row(name, result, Text(seen))
    print_table(out, row)
    out.file.flush()


@app.command()
def health(
    role: Annotated[
        str,
        typer.Option(
            help="The role to ask: ingest, train, serve, archive, follow, score or trial."
        ),
    ] = "serve",
    ready: Annotated[
        bool, typer.Option("--ready", help="Ask whether it can answer now (serve only).")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Ask a role on this machine whether its loop is alive, also if it waits for Kafka, or whether
    the server is ready: exit status 0 or 1."""
    from streamd.cli.health import ask_health

    well, why = ask_health(settings_of(config, None), role, "/readyz" if ready else "/livez")
    verdict = f"{'' if well else 'not '}{'ready' if ready else 'alive'}"
    out.print(f"{role}: {verdict}: {why}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if well else 1)


def _version(value: bool) -> None:
    if value:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # Warnings go to stderr, as progress does: another program may read the results on stdout.
    import logging

    import structlog

    from streamd.telemetry.logs import route_library_lines

    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    route_library_lines(logging.WARNING)
    # Roles log the lines of the client again: see `configure_logs`.
    context.with_resource(quiet_client())


join_help_lines(app)


def main() -> None:
    """Run the command line; an error raised on purpose is one line and exit status 2."""
    # Escape the characters that the terminal's encoding lacks, as in cron with LANG=C.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except StreamdError as error:
        err.print(f"streamd: {error_text(error)}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
