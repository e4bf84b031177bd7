"""Converts between ids of tables, which are texts, and keys of nodes, which are texts or integers.

As in other imports of tables, an id of digits means an integer key. If the node set has a text key
such as "8", its ids have another form, named in its metadata.
"""

import json
from collections.abc import Iterable

import structlog

from streamd.errors import TFGNNError
from streamd.exchange.key_cells import DIGITS, KeyCells, has_two_kinds
from streamd.tfgnn.logs.declared import ID, KEYS

logger = structlog.get_logger()

PLAIN, TEXT, JSON = "plain", "text", "json"
"""Forms of ids: digits mean integers; all keys are texts; keys are JSON, so that "8" differs from
8."""
FORMS = (PLAIN, TEXT, JSON)


def form_of(keys: Iterable[str | int]) -> str:
    """The simplest form of ids that keeps all keys of a node set distinct."""
    texts = []
    has_integers = False
    for key in keys:
        if isinstance(key, int):
            has_integers = True
        elif DIGITS.fullmatch(key):
            # Only texts of digits can be mistaken for integers.
            texts.append(key)
    if not has_two_kinds(texts, has_integers):
        return PLAIN
    return JSON if has_integers else TEXT


def id_of(key: str | int, form: str) -> bytes:
    """The id of a key."""
    text = json.dumps(key, ensure_ascii=False) if form == JSON else str(key)
    return text.encode()


def key_of(id: bytes, form: str, cells: KeyCells) -> str | int:
    """The key of an id. cells: parser for the plain form. Raises: ValueError if it is no key,
    Misfit if its form differs from the other ids'."""
    text = id.decode()
    if form == JSON:
        key = json.loads(text)
        if type(key) not in (str, int):
            raise ValueError("it is neither a text nor an integer as JSON")
        return key  # type: ignore[no-any-return]
    return cells.read(text) if form == PLAIN else text


def reader_of_ids(node_set: str) -> KeyCells:
    """A parser of a node set's ids in the plain form."""

    def warn(doubt: str) -> None:
        logger.warning("tfgnn_ids_ambiguous", node_set=node_set, meaning=doubt)

    way_out = f'add extra {{ key: "{KEYS}" value: "text" }} to the metadata of node set {node_set}.'
    return KeyCells(ID, None, way_out, warn, "take the blanks out of the table")


def checked_form(form: str | None, node_set: str) -> str:
    """The form in a schema's metadata, the plain one if there is none. Raises: TFGNNError."""
    if form is None:
        return PLAIN
    if form not in FORMS:
        raise TFGNNError(
            f"Node set {node_set!r} has ids of the form {form[:40]!r}.", f"one of {FORMS}."
        )
    return form
