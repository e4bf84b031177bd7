"""Prints tables of commands: in a terminal at its width, elsewhere one line a row, never
wrapped."""

import io
import os
from collections.abc import Iterable, Sequence
from copy import copy

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

UNBOUNDED = 100_000
"""Width in columns of a file or a pipe, so that nothing is wrapped."""


def line_width(console: Console) -> int:
    """Maximum width of a line of output, in columns: the terminal's, or the variable COLUMNS."""
    if console.is_terminal:
        return console.width
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() else UNBOUNDED


def print_table(console: Console, table: Table) -> None:
    """Print a table. In a file or a pipe each row is one line, without trailing blanks."""
    if console.is_terminal:
        console.print(table, markup=False, highlight=False)
        return
    # A title is centred over the table, so print it at its natural width. A caption may be wider
    # than the table, which would wrap it.
    printed = io.StringIO()
    sheet = Console(file=printed, width=line_width(console), color_system=None)
    sheet.width = max(1, sheet.measure(table).maximum)
    without = copy(table)
    without.caption = None
    sheet.print(without, markup=False, highlight=False)
    below = [] if table.caption is None else [f" {table.caption}"]
    print_lines(console, [*printed.getvalue().splitlines(), *below])


def print_listing(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of one short and some long cells a row. In a file or a pipe only the first cell
    is padded, since one long cell would pad those of all rows."""
    if console.is_terminal:
        table = Table(*head, box=None)
        for row in rows:
            table.add_row(*row)
        print_table(console, table)
        return
    cells = (head, *rows)
    width = max(cell_len(first) for first, *_ in cells)
    lines = ("  ".join((set_cell_size(first, width), *others)) for first, *others in cells)
    print_lines(console, (f" {line}" for line in lines))


def print_records(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], num_long: int
) -> None:
    """Print rows with long texts in their last cells.

    Args: num_long: number of these cells. If a row does not fit into a line, its short cells share
    one line, and each long cell follows on its own line, whole, so that it can be copied.
    """
    num_short = len(head) - num_long
    cells = (head, *rows)
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(head))]
    whole = 1 + sum(widths) + 2 * (len(head) - 1)
    if whole <= line_width(console):
        print_lines(console, (_line(row, widths) for row in cells))
        return
    print_lines(console, [_line(head[:num_short], widths)])
    for row in rows:
        long = (f"   {cell}" for cell in row[num_short:] if cell)
        print_lines(console, [_line(row[:num_short], widths), *long])


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are, without trailing blanks; a terminal breaks lines that are too
    long."""
    for line in lines:
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=False))
    return " " + "  ".join(padded)


def join_help_lines(app: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' descriptions. They are docstrings, and a
    list of commands in a terminal would keep the line ends of the source."""
    for command in app.registered_commands:
        text = (command.callback.__doc__ if command.callback else None) or ""
        paragraphs = text.replace("\n    ", "\n").split("\n\n")
        command.help = "\n\n".join(" ".join(part.split()) for part in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            join_help_lines(group.typer_instance)
