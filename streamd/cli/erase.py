"""The command `streamd erase`."""

import os
from typing import Annotated

import typer

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.settings.loading import Settings
from streamd.telemetry.progress import ProgressLine

NICE = 10
"""Niceness of the process that works on requests: a proof reads a whole data directory."""


def erase(
    keys: Annotated[
        list[str] | None,
        typer.Argument(help="Keys of nodes, such as user:8; or @FILE with one a line."),
    ] = None,
    node_set: Annotated[
        str | None, typer.Option(help="Node set of the keys, if several sets hold one of them.")
    ] = None,
    key_type: Annotated[
        str | None, typer.Option(help="text or integer, if the log holds a key as both.")
    ] = None,
    topic: Annotated[
        str,
        typer.Option(
            help="Topic for the deletes; the first of kafka.topics without a source otherwise."
        ),
    ] = "",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until all is erased.")] = 60,
    requests: Annotated[
        bool,
        typer.Option(
            "--requests", help="Work on the requests of POST /v1/erase instead; a server runs it."
        ),
    ] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Erase nodes: send their deletes, wait for them in the log, compact, and prove that nothing is
    left. Exit status 1 if something still waits or was found; the same command continues."""
    settings = settings_of(config, data_dir)
    if requests:
        _work_on_requests(settings)
        return
    from streamd.cli.erasing import erase_nodes

    with ProgressLine(err, "looking keys up", "keys") as line:
        done, text = erase_nodes(settings, keys or [], node_set, key_type, topic, wait, line)
    out.print(text, soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(0 if done else 1)


def _work_on_requests(settings: Settings) -> None:
    """Work on the open requests until none is left, or the server that started this process ends.
    Raises: StreamdError."""
    from streamd.cli.erasure_work import ErasureWork
    from streamd.processes import end_with_supervisor
    from streamd.telemetry.logs import configure_logs

    # A server that starts again starts its own process.
    end_with_supervisor()
    os.nice(NICE)
    configure_logs(settings.telemetry.log_level, settings.telemetry.log_format, "erase")
    ErasureWork(settings.data_dir).run(settings)
