"""The options that several commands share, and the two consoles to which all commands print."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from streamd.errors import SettingsError
from streamd.roles import ALL_ROLES
from streamd.settings.loading import Settings, load_settings
from streamd.settings.sets import nearest_of
from streamd.settings.tree import FILE_VARIABLE

out = Console(soft_wrap=not sys.stdout.isatty())
"""Stdout is for a command's result. Only a terminal wraps lines, so that those in a file or a pipe
can be searched."""
err = Console(stderr=True, soft_wrap=not sys.stderr.isatty())
"""Stderr is for progress, damage and errors."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", envvar=FILE_VARIABLE, help="YAML settings file.")
]
# All commands on a data directory or with settings share these options.
DataOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Data directory (setting data_dir).")
]


def check_role(role: str) -> None:
    """Check that a role exists. Raises: SettingsError."""
    if role not in ALL_ROLES:
        raise SettingsError(
            f"There is no role {role!r}{nearest_of(role, ALL_ROLES)}.", "name one of them."
        )


def settings_of(
    config: Path | None, data_dir: Path | None, values: Mapping[str, Any] | None = None
) -> Settings:
    """Load the settings in force for a command's options.

    values: by dotted key; they override all others. Raises: SettingsError.
    """
    return loaded_settings(config, data_dir, values)[0]


def loaded_settings(
    config: Path | None, data_dir: Path | None, values: Mapping[str, Any] | None = None
) -> tuple[Settings, dict[str, str]]:
    """Load settings as `settings_of` does. Returns: the settings, and the origin of each value by
    key."""
    # Options of the command line override file and environment.
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return load_settings(config, overrides | dict(values or {}))


@contextmanager
def quiet_client() -> Iterator[None]:
    """Keep the Kafka client from logging each of its attempts; the command's error is enough."""
    logger = logging.getLogger("kafka")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def printable(text: str) -> str:
    """Escape control characters in text from outside, because a terminal would obey them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Escape control characters as `printable` does, in each line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def error_text(error: BaseException) -> str:
    """The text of an error for a terminal. That of settings may have several lines, one for each
    error; any other is one line."""
    return (printable_lines if isinstance(error, SettingsError) else printable)(str(error))


def print_rounded(words: str) -> None:
    """Print to stderr which values were rounded. words: "" if none were."""
    if words:
        err.print(printable(words), soft_wrap=True, markup=False, highlight=False)


def print_warnings(sentences: Iterable[str]) -> None:
    """Print sentences to stderr, one a line."""
    for sentence in sentences:
        err.print(printable(sentence), soft_wrap=True, markup=False, highlight=False)


def make_kernels_ready() -> None:
    """Compile the kernels unless they are compiled already, with a notice that it takes a while."""
    from streamd.graph.jit import compile_notice
    from streamd.graph.warm_up import warm_up

    if notice := compile_notice():
        err.print(notice, soft_wrap=True)
        warm_up()
