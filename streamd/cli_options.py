"""The options that several commands take, and the two consoles that all of them print to."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

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


def settings_of(
    config: Path | None, data_dir: Path | None, values: Mapping[str, Any] | None = None
) -> Settings:
    """The settings in force for a command's options. values: by dotted key, over all others.
    Raises: SettingsError."""
    # What the command line says is stronger than file and environment.
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return load_settings(config, overrides | dict(values or {}))[0]


class GridCommand(TyperCommand):
    """A command with the option `--grid`, which takes all words after it that set something."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, with `--grid` written before each word: its options take one."""
        spelled: list[str] = []
        for word in args:
            if spelled[-2:-1] == ["--grid"] and re.match(r"[a-z_.]+=", word):
                spelled.append("--grid")
            spelled.append(word)
        return super().parse_args(ctx, spelled)
