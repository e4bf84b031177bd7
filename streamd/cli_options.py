"""The options that several commands take, and the two consoles that all of them print to."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from streamd.settings import Settings, load_settings

out = Console()
"""Stdout is for a command's answer."""
err = Console(stderr=True)
"""Stderr is for progress, damage and errors."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="STREAMD_CONFIG", help="YAML settings file.")
]
# Data directories and files have the same option wherever a command takes one.
DataOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Data directory (setting data_dir).")
]

SrcOption = Annotated[str, typer.Option(help="Column of the source.")]
DstOption = Annotated[str, typer.Option(help="Column of the destination.")]
TimeOption = Annotated[
    str, typer.Option(help="Column of the time: integers in stream.time_unit, or ISO 8601.")
]
FeaturesOption = Annotated[str, typer.Option(help="Feature columns, comma separated.")]


def settings_of(config: Path | None, data_dir: Path | None) -> Settings:
    """The settings in force for a command's options. Raises: SettingsError."""
    # What the command line says is stronger than file and environment.
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return load_settings(config, overrides)[0]
