"""`streamd sql` answers SELECTs over a log, given as an argument, on stdin, or in a shell."""

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from streamd.cli.options import (
    ConfigOption,
    DataOption,
    err,
    make_kernels_ready,
    out,
    printable,
    settings_of,
)
from streamd.cli.table_output import print_table
from streamd.errors import StreamdError
from streamd.number_texts import count_noun

if TYPE_CHECKING:
    from streamd.table.sql.session import SqlSession

Format = Literal["table", "csv", "json", "parquet"]
SHOWN_ROWS = 1000
"""Most rows of a table: more are not for people, and all must be in memory for its widths."""

SHOWN_CHARACTERS = 100
"""Most characters of a cell of a table: a nested value of a window has thousands, which would make
each row a page."""


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(help="One SELECT; otherwise stdin has it, or in a terminal a shell begins."),
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="Form of the result on stdout.")
    ] = "table",
    scores: Annotated[
        Path | None,
        typer.Option(
            help="File of the view scores, one record a line; by default server.score_topic."
        ),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Ask the log in SQL: events, nodes, labels, windows, versions, moves, scores and facts, as of
    its newest commit."""
    from streamd.cli.sql_shell import SqlShell, store_history
    from streamd.scoring.stored_scores import score_source
    from streamd.table.opening import open_log
    from streamd.table.sql.session import SqlSession

    settings = settings_of(config, data_dir)
    if format_ == "parquet" and sys.stdout.isatty():
        raise StreamdError(
            "Parquet is not for a terminal.", "write it to a file, as > out.parquet."
        )
    # All statements of a shell see one commit.
    with open_log(settings.data_dir) as snapshot:
        session = SqlSession(
            snapshot,
            settings.sql.max_memory_bytes,
            settings.model,
            score_source(settings, scores),
        )
        if statement is None and sys.stdin.isatty():
            err.print(
                f"Commit {snapshot.commit:,} with events [{snapshot.first_event:,}, "
                f"{snapshot.end_event:,}). End a SELECT with ; and see .help.",
                soft_wrap=True,
                highlight=False,
            )
            try:
                SqlShell(session, lambda text: answer(session, text, format_)).run()
            finally:
                store_history()
            return
        answer(session, sys.stdin.read() if statement is None else statement, format_)


def answer(session: "SqlSession", statement: str, format_: Format) -> None:
    """Print the result of a statement. Raises: QueryError, LeaseError."""
    from streamd.table.sql.output import FORMATS

    # Only facts need kernels, which may take half a minute to compile.
    if "facts" in statement.lower():
        make_kernels_ready()
    result = session.query(statement)
    if format_ == "table":
        print_result(result)
    else:
        FORMATS[format_](result, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    for hint in session.hints():
        err.print(printable(hint), soft_wrap=True, markup=False, highlight=False)


def print_result(result: Any) -> None:
    """Print the first SHOWN_ROWS rows of a result as a table, with long cells cut, and the numbers
    of other rows and of cut cells."""
    from streamd.table.sql.output import as_text, rows_of

    # Read the rest to the end, to count it.
    rows = rows_of(result)
    table = Table(*(printable(name) for name in result.schema.names), box=None)
    num_cut = 0
    for row in islice(rows, SHOWN_ROWS):
        texts = [printable(as_text(value)) for value in row.values()]
        num_cut += sum(len(text) > SHOWN_CHARACTERS for text in texts)
        table.add_row(*(Text(_cut(text)) for text in texts))
    print_table(out, table)
    if num_cut:
        cut = f"{count_noun(num_cut, 'cell')} cut at {SHOWN_CHARACTERS} characters"
        err.print(f"{cut}: --format json has all", soft_wrap=True, highlight=False)
    more = sum(1 for _ in rows)
    if more:
        err.print(
            f"and {count_noun(more, 'more row')}: --format csv, json or parquet has all",
            soft_wrap=True,
            highlight=False,
        )


def _cut(text: str) -> str:
    """The beginning of a long text, with an ellipsis."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
