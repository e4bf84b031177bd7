"""Advice in errors about a spec that follows edges against their direction.

Sampling follows edges from source to target only. The reverse of an edge set is another edge set
with the same table and `edge_type: reversed` in its metadata. For a log, --reversed adds such sets.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema
from streamd.tfgnn.schema.schema import is_reversed

CORRECT = "correct the sampling spec."


@dataclass(frozen=True, slots=True)
class ReverseAdvice:
    """Suggests which reversed edge set to add to a schema. reverses: name of an edge set -> name of
    its reverse, for a log; empty for tables."""

    schema: GraphSchema
    reverses: Mapping[str, str]

    def of_missing(self, name: str, start: str | None, ends: Collection[str]) -> str:
        """Advice for an edge set that is not in the schema.

        start: the node set that must be its source, None if unknown. ends: the node sets that
        should be its target, empty if unknown.
        """
        sets = self.schema.edge_sets
        found = [forward for forward, reverse in self.reverses.items() if reverse == name]
        if not found and start is not None:
            found = [other for other, one in sorted(sets.items()) if one.target == start]
            found = [other for other in found if sets[other].source in ends] or found
        if not found:
            return CORRECT
        return self._add(max(found, key=lambda n: SequenceMatcher(None, n, name).ratio()), name)

    def of_direction(self, name: str, start: str) -> str:
        """Advice for an edge set with another source than the node set `start`."""
        sets = self.schema.edge_sets
        one = sets[name]
        if one.target != start:
            return CORRECT
        for other, its in sorted(sets.items()):
            has_same_table = bool(_filename(one)) and _filename(its) == _filename(one)
            is_reverse = has_same_table and (its.source, its.target) == (one.target, one.source)
            if is_reverse or other == self.reverses.get(name):
                return f"name {other!r}, the reverse of {name!r}."
        return self._add(name, f"rev_{name}")

    def _add(self, forward: str, name: str) -> str:
        """Advice to add the reverse of the edge set `forward` under a name."""
        if forward in self.reverses:
            reverse = self.reverses[forward]
            return f"give --reversed, and name {reverse!r}, which is the reverse of {forward!r}."
        one = self.schema.edge_sets[forward]
        metadata = ""
        if _filename(one):
            extra = "" if is_reversed(one) else ' extra { key: "edge_type" value: "reversed" }'
            metadata = f" metadata {{ filename: {json.dumps(_filename(one))}{extra} }}"
        return (
            f"correct the name, or add the reverse of {forward!r} to the schema, with its "
            f"features: edge_sets {{ key: {json.dumps(name)} value {{ "
            f"source: {json.dumps(one.target)} target: {json.dumps(one.source)}{metadata} }} }}"
        )


def _filename(one: EdgeSet) -> str:
    """The file name of an edge set's table, empty for none."""
    filename: str = one.metadata.filename
    return filename
