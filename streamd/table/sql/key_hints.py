"""Hints for statements that compare a node id with a key: only the log knows its node ids."""

import re
from collections.abc import Callable

KEY_COLUMNS = {"src": "src_key", "dst": "dst_key", "node": "key"}
"""Columns of node ids -> the columns with the keys of these nodes."""
COMPARED = re.compile(
    r"(?<![\w'])(src|dst|node)\s*(?:==?|<>|!=|(?:not\s+)?in\s*\()\s*(?:'([^']*)'|(-?\d+)\b)",
    re.IGNORECASE,
)


def compared_values(statement: str) -> list[tuple[str, str]]:
    """The columns of node ids that a statement compares with constants, each with its first
    constant as text."""
    found = COMPARED.findall(statement)
    return [(column.lower(), text or number) for column, text, number in found]


def text_hint(statement: str) -> str:
    """What to compare in a statement that failed since a node id was compared with a text; "" if
    that was not its fault."""
    for column, value in compared_values(statement):
        if not value.lstrip("-").isdigit():
            key = KEY_COLUMNS[column]
            return f"{column} is the log's number of a node: compare {key}, as {key} = '{value}'"
    return ""


def id_hints(statement: str, node_of: Callable[[str], int | None]) -> list[str]:
    """Sentences on the node ids in a statement that may be meant as keys. node_of: the node id of a
    key, given as text; None if no node has it."""
    hints = []
    for column, value in dict.fromkeys(compared_values(statement)):
        node = node_of(value)
        # Ids that equal the keys select the same rows.
        if node is not None and str(node) != value:
            key = KEY_COLUMNS[column]
            hints.append(
                f"{column} = {value} is the log's number of a node. The node with the key {value} "
                f"has the number {node:,}: for it compare {key} = '{value}'."
            )
    return hints
