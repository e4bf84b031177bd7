"""The shell of `streamd sql`: lines with history and completion, each statement up to its `;`."""

import contextlib
import os
import readline
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from streamd.cli.options import err, error_text, out
from streamd.errors import LeaseError, StreamdError

if TYPE_CHECKING:
    from streamd.table.sql.session import SqlSession

PROMPT, MORE = "streamd> ", "    ...> "
HISTORY_LINES = 1000
"""Lines that the history file keeps."""
WORDS = (
    *("select", "from", "where", "group", "by", "having", "order", "limit", "asc", "desc"),
    *("join", "left", "inner", "asof", "on", "using", "union", "all", "with", "distinct"),
    *("as", "and", "or", "not", "null", "is", "in", "like", "between", "case", "when", "then"),
    *("else", "end", "over", "partition", "qualify", "interval", "timestamp", "date_trunc"),
    *("count", "sum", "avg", "min", "max", "max_by", "describe", "show", "tables"),
)
"""Words of SQL that are completed."""
HELP = """\
SELECT ...;      answer a statement, which may have several lines
.tables          list the views
.columns VIEW    list the columns of a view
.help            print this
.quit            leave, as Ctrl-D does; Ctrl-C drops a statement"""


def history_path() -> Path:
    """The file of the history, in the user's folder of states."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "streamd" / "sql_history"


class SqlShell:
    """Reads statements and lets a function answer them. Owner: the command."""

    def __init__(
        self,
        session: "SqlSession",
        answer: Callable[[str], None],
        ask: Callable[[str], str] = input,
    ) -> None:
        """answer: prints the result of a statement. ask: reads a line after a prompt, and raises
        EOFError at the end."""
        self._views = session.views
        self._answer = answer
        self._ask = ask
        columns = {column for columns in self._views.values() for column in columns}
        commands = (".tables", ".columns", ".help", ".quit")
        self._words = sorted({*WORDS, *self._views, *columns, *commands})

    def run(self) -> None:
        """Answer statements until the end of the input. Errors are printed, and the next statement
        is read; a lease that has run out ends the shell."""
        self._begin_lines()
        lines: list[str] = []
        while True:
            try:
                line = self._ask(MORE if lines else PROMPT)
            except EOFError:
                return
            except KeyboardInterrupt:
                # Ctrl-C drops the lines so far.
                lines = []
                out.print()
                continue
            # Commands of the shell begin with a point, and are one line.
            if not lines and line.strip().startswith("."):
                if not self._obey(line.split()):
                    return
                continue
            lines.append(line)
            text = "\n".join(lines).strip()
            if not text.endswith(";"):
                lines = lines if text else []
                continue
            lines = []
            self._try(text)

    def _try(self, text: str) -> None:
        """Answer a statement; errors are printed. Raises: LeaseError."""
        try:
            self._answer(text)
        except LeaseError:
            raise
        except KeyboardInterrupt:
            err.print("interrupted")
        except StreamdError as error:
            err.print(error_text(error), markup=False, highlight=False, soft_wrap=True)

    def _obey(self, words: list[str]) -> bool:
        """Obey a command of the shell. Returns: whether to read on."""
        command, *names = words
        # Leave, list names, or print help for anything else.
        if command in (".quit", ".exit"):
            return False
        if command == ".tables":
            lines = list(self._views)
        elif command == ".columns" and names and names[0] in self._views:
            lines = self._views[names[0]]
        else:
            lines = HELP.splitlines()
        for line in lines:
            out.print(line, markup=False, highlight=False, soft_wrap=True)
        return True

    def complete(self, text: str, number: int) -> str | None:
        """The n-th word that begins with a text, in the case of the text; None after the last."""
        # Words are in order, so Tab offers them in order too.
        found = [word for word in self._words if word.startswith(text.lower())]
        if number >= len(found):
            return None
        return found[number].upper() if text.isupper() else found[number]

    def _begin_lines(self) -> None:
        """Let lines be edited with the history of earlier shells, and completed by Tab."""
        readline.set_completer(self.complete)
        readline.set_completer_delims(" \t\n,()=<>+-*/;'\"")
        readline.parse_and_bind("tab: complete")
        readline.set_history_length(HISTORY_LINES)
        # A history that cannot be read or written is no reason to fail.
        path = history_path()
        with contextlib.suppress(OSError):
            readline.read_history_file(path)


def store_history() -> None:
    """Write the lines of this shell after those of earlier ones, readable by the user only."""
    path = history_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        readline.write_history_file(path)
