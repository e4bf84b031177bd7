"""The options that several commands take, and the two consoles that all of them print to."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from streamd.errors import SettingsError
from streamd.settings.loading import Settings, load_settings

if TYPE_CHECKING:
    from streamd.exchange.tables import Columns

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
SourceOption = Annotated[
    str, typer.Option(help="Topic in `sources` whose mapping reads the rows, instead of columns.")
]
EdgeSetOption = Annotated[
    str, typer.Option(help="Edge set of the rows; otherwise what a column edge_set says.")
]
FeaturesOption = Annotated[
    str, typer.Option(help="Feature columns, comma separated, or one of lists or mappings.")
]
OwnTypesOption = Annotated[
    bool,
    typer.Option(
        "--own-types",
        help="NDJSON lines of type node, label or delete are streamd's own, next to named columns.",
    ),
]


DelimiterOption = Annotated[
    str,
    typer.Option(
        help="What is between cells: one or more characters, tab, or blanks for any number of "
        "blanks and tabs; by default a comma, in .tsv a tab."
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option("--no-header", help="The first row is data; columns are numbered from 1."),
]
CommentOption = Annotated[str, typer.Option(help="Leave out lines that begin so, for example '#'.")]
QuotingOption = Annotated[
    str, typer.Option(help="none: a quotation mark is a character like any other.")
]
StripOption = Annotated[
    bool, typer.Option("--strip", help="Leave out blanks around names and cells.")
]
KeysOption = Annotated[
    str,
    typer.Option(help="text: all keys are text. By default, digits in CSV are integer keys."),
]
SortOption = Annotated[
    bool,
    typer.Option("--sort", help="Sort the rows by time, in bounded memory and a temporary folder."),
]


def columns_of(
    src: str = "src",
    dst: str = "dst",
    time: str = "time",
    features: str = "",
    source: str = "",
    edge_set: str = "",
    own_types: bool = False,
) -> "Columns":
    """What the options of a command say about a file's columns. Raises: SettingsError."""
    from streamd.exchange.tables import Columns

    names = tuple(f for f in features.split(",") if f)
    columns = Columns(src, dst, time, names, source, edge_set, own_types=own_types)
    if source and columns != Columns(source=source):
        raise SettingsError(
            "--source and names of columns contradict one another.", "give one of them."
        )
    return columns


def settings_of(
    config: Path | None, data_dir: Path | None, values: Mapping[str, Any] | None = None
) -> Settings:
    """The settings in force for a command's options. values: by dotted key, over all others.
    Raises: SettingsError."""
    return loaded_settings(config, data_dir, values)[0]


def loaded_settings(
    config: Path | None, data_dir: Path | None, values: Mapping[str, Any] | None = None
) -> tuple[Settings, dict[str, str]]:
    """As `settings_of`, with where each value comes from."""
    # What the command line says is stronger than file and environment.
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return load_settings(config, overrides | dict(values or {}))


def printable(text: str) -> str:
    """Escape control characters in text from outside, because a terminal would obey them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """As `printable`, for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def print_rounded(words: str) -> None:
    """Print to stderr which values were rounded, if any. words: empty for none."""
    if words:
        err.print(printable(words), soft_wrap=True, markup=False, highlight=False)


def print_warnings(sentences: Iterable[str]) -> None:
    """Print sentences to stderr, one a line."""
    for sentence in sentences:
        err.print(printable(sentence), soft_wrap=True, markup=False, highlight=False)


def make_kernels_ready() -> None:
    """Compile the kernels where that was not done before, with a notice that it takes a while."""
    from streamd.graph.jit import compile_notice
    from streamd.graph.warm_up import warm_up

    if notice := compile_notice():
        err.print(notice, soft_wrap=True)
        warm_up()
