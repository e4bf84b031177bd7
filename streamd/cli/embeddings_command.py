"""The command `streamd embeddings`."""

import sys
from typing import Annotated, Literal

import typer

from streamd.cli.options import ConfigOption, DataOption, make_kernels_ready, settings_of
from streamd.errors import StreamdError

Format = Literal["csv", "json", "parquet"]


def embeddings(
    version: Annotated[
        str, typer.Option(help="Name of the version; by default the champion.")
    ] = "",
    node_set: Annotated[str, typer.Option(help="Node set; by default all.")] = "",
    format_: Annotated[
        Format, typer.Option("--format", help="Form of the table on stdout.")
    ] = "parquet",
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Write the embeddings of all nodes as of a version to stdout."""
    from streamd.table.opening import open_log

    settings = settings_of(config, data_dir)
    if format_ == "parquet" and sys.stdout.isatty():
        raise StreamdError(
            "Parquet is not for a terminal.", "write it to a file, as > embeddings.parquet."
        )
    with open_log(settings.data_dir) as snapshot:
        # Here, because it needs pyarrow.
        from streamd.table.sql.output import FORMATS

        make_kernels_ready()
        table = snapshot.embeddings(version or None, node_set or None)
        FORMATS[format_](table, sys.stdout.buffer)
        sys.stdout.buffer.flush()
