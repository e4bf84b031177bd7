"""Declares which parts of a module's tensors are columns of the log's schema, so that
`streamd.models.widening` can extend any architecture when the log gets further sets or features.

A module with such tensors has the method `schema_inputs() -> dict[str, SchemaInput]`, by the names
of its own parameters and buffers.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True, slots=True)
class SchemaInput:
    """The part of a tensor that has an entry for each column of the schema.

    kind: of the columns: a row of edge or node features, a row of facts, one column for each edge
    set, or the features of one set. axis: the tensor's axis of columns; offset: index of the first
    column on it. optional: whether the module has no such tensor under a schema without such
    columns. When such a module is widened, the tensor starts at zero.
    """

    kind: Literal["edge_features", "node_features", "facts", "edge_sets", "set_features"]
    offset: int = 0
    axis: int = -1
    optional: bool = False


def schema_inputs(model: nn.Module) -> dict[str, SchemaInput]:
    """The schema inputs of all modules of a model, by the tensors' names in `state_dict`."""
    found: dict[str, SchemaInput] = {}
    for path, module in model.named_modules():
        declared: Any = getattr(module, "schema_inputs", dict)
        found |= {f"{path}.{name}".removeprefix("."): one for name, one in declared().items()}
    return found
