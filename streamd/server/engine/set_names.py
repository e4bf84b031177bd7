"""The names of node sets and edge sets in requests, and the keys of their nodes."""

from collections.abc import Sequence

from fastapi import HTTPException

from streamd.events import Key, SetKey
from streamd.schema import Schema

PlainKey = str | int
"""A key as clients write it; its node set is named separately."""


class Sets:
    """Finds sets by their names; a request may omit the name of the only set. Owner: the server's
    state."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.num_edge_sets = schema.num_edge_sets

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the node sets and of the edge sets, by their numbers."""
        return self._schema.node_set_names, self._schema.edge_set_names

    def edge_set(self, name: str | None) -> int:
        """Number of an edge set. Raises: HTTPException if the name is unknown, or missing although
        there are several."""
        return _number(name, self._schema.edge_set_names, "edge_set")

    def node_set(self, name: str | None) -> int:
        """Number of a node set. Raises: like `edge_set`."""
        return _number(name, self._schema.node_set_names, "node_set")

    def edge_set_name(self, number: int) -> str:
        """Name of an edge set."""
        return self._schema.edge_set_names[number]

    def node_set_name(self, key: Key) -> str:
        """Name of the node set that a key belongs to."""
        number = key.node_set if isinstance(key, SetKey) else 0
        return self._schema.node_set_names[number]

    def endpoint_sets(self, edge_set: int) -> tuple[int, int]:
        """Numbers of the node sets of an edge set's sources and destinations."""
        return self._schema.ends_of(edge_set)

    def check_kind(self, kind: str | None) -> None:
        """Refuse a filter by kind, the text before a key's colon, if node sets are declared.
        Raises: HTTPException."""
        if kind is not None and self._schema.node_sets:
            raise HTTPException(
                422,
                "kind is for logs without declared node sets; leave it out: the nodes of the "
                "answer are those of edge_set's target",
            )


def in_set(node_set: int, key: PlainKey) -> Key:
    """The key of a node of a set."""
    return SetKey(node_set, key) if node_set else key


def plain(key: Key) -> PlainKey:
    """A key without its node set, as clients write it."""
    return key.key if isinstance(key, SetKey) else key


def _number(name: str | None, names: Sequence[str], what: str) -> int:
    # With one set, a request may omit its name.
    if name is None and len(names) == 1:
        return 0
    if name is None:
        raise HTTPException(422, f"{what} is required; there are {', '.join(names)}")
    if name not in names:
        are = "is only" if len(names) == 1 else "are"
        raise HTTPException(422, f"there is no {what} {name!r}; there {are} {', '.join(names)}")
    return names.index(name)
