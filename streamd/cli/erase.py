"""The command `streamd erase`."""

from typing import Annotated

import typer

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.telemetry.progress import ProgressLine


def erase(
    keys: Annotated[
        list[str], typer.Argument(help="Keys of nodes, such as user:8; or @FILE with one a line.")
    ],
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
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Erase nodes: send their deletes, wait for them in the log, compact, and prove that nothing is
    left. Exit status 1 where something still waits or was found; the same command continues."""
    from streamd.cli.erasing import erase_nodes

    settings = settings_of(config, data_dir)
    with ProgressLine(err, "looking keys up", "keys") as line:
        done, text = erase_nodes(settings, keys, node_set, key_type, topic, wait, line)
    out.print(text, soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(0 if done else 1)
