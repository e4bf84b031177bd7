"""Decides which keys in text cells are integers: those of CSV and of TF-GNN's tables.

7 and "7" are two nodes, so the keys of one column should all be integers or all be text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from streamd.eventlog.odd_keys import OddKeys
from streamd.exchange.times import Misfit, shown_value
from streamd.settings.sources import KeyType

INTEGER_KEY = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""Text in a table that is an integer key: as Python writes it, so 007 is text."""
CUT = r"[0-9](?:\.[0-9]+)?E\+[0-9]{1,3}"
"""An integer as spreadsheets write long ones."""
DIGITS = re.compile(rf"[+-]?(?:[0-9]+(?:\.0)?|{CUT})")
"""Text that looks like an integer, although perhaps not in the form of `INTEGER_KEY`."""
STRIP = "--strip leaves blanks out"
"""The remedy for blanks around the keys of a file."""
NO_INTEGER = re.compile(rf"-?(?:[0-9]+\.0|{CUT})")
"""Integers as programs write them in a column of another type."""


def has_two_kinds(texts: Iterable[str], has_integers: bool) -> bool:
    """Whether `KeyCells` would read one of these texts as an integer, or would refuse it next to
    integers.

    has_integers: whether there are integers.
    """
    return any(is_integer_key(t) or (has_integers and DIGITS.fullmatch(t)) for t in texts)


def is_integer_key(text: str) -> bool:
    """Whether text in a table is an integer key."""
    return INTEGER_KEY.fullmatch(text) is not None and abs(int(text)) < 2**63


def all_doubts(odd: OddKeys, of_file: Sequence[str]) -> list[str]:
    """The sentences on odd keys, then those on the cells of a file; blanks around keys once."""
    if any(doubt.endswith(STRIP) for doubt in of_file):
        odd = replace(odd, blank="")
    return [*odd.sentences, *of_file]


class KeyCells:
    """Reads the cells of one column of keys. Owner: the reader of a file.

    Args: column: its name; kind: text or integer if the settings name one; way_out: the operator's
    action to name one; doubt: called with a sentence, once for each kind of doubt; strip: the
    operator's action to remove blanks.
    """

    def __init__(
        self,
        column: str,
        kind: KeyType | None,
        way_out: str,
        doubt: Callable[[str], None],
        strip: str = STRIP,
    ) -> None:
        self._column = column
        self._kind = kind
        self._way_out = way_out
        self._doubt = doubt
        self._strip = strip
        self._integer = ""
        self._digits = ""
        self._text = ""
        self._is_mixed = False
        self._has_blanks = False
        self._has_numbers = False

    def read(self, cell: str) -> int | str:
        """Read one cell that is not empty. Raises: Misfit if the column has digits of two kinds, or
        `kind` is integer and the cell is not."""
        if not self._has_blanks and cell != cell.strip():
            self._has_blanks = True
            self._doubt(
                f"column {self._column!r} has {shown_value(cell)}, which is another key than "
                f"{shown_value(cell.strip())}: {self._strip}"
            )
        if not self._has_numbers and (cell[-2:] == ".0" or "E+" in cell):
            self._look_at_number(cell)
        if self._kind == "text":
            return cell
        # Keep one example of each kind, to compare the kinds and to name them in errors.
        if is_integer_key(cell):
            self._integer = self._integer or cell
        elif self._kind == "integer":
            raise Misfit(f"{shown_value(cell)} is not an integer")
        elif DIGITS.fullmatch(cell):
            self._digits = self._digits or cell
        else:
            self._text = self._text or cell
        if self._integer:
            self._compare()
        return int(cell) if is_integer_key(cell) else cell

    def _look_at_number(self, cell: str) -> None:
        """Report a key that looks like an integer rewritten by another program, once."""
        if not NO_INTEGER.fullmatch(cell):
            return
        self._has_numbers = True
        by = "a spreadsheet writes long ids so, and cuts their digits"
        if cell.endswith(".0"):
            by = (
                f"another key than {cell[:-2]}; pandas writes integers so if one of them is missing"
            )
        self._doubt(
            f"column {self._column!r} has {shown_value(cell)}, which is text: {by}, so write the "
            "column as integers or text before"
        )

    def _compare(self) -> None:
        """Compare integers with the other keys so far. Raises: Misfit."""
        if self._digits:
            raise Misfit(
                f"it has {shown_value(self._digits)}, which stays text, and {self._integer}, which "
                "would be an integer",
                self._way_out,
            )
        if self._text and not self._is_mixed:
            self._is_mixed = True
            self._doubt(
                f"column {self._column!r} has the integer {self._integer} and the text "
                f"{shown_value(self._text)}: if all are text, {self._way_out}"
            )
