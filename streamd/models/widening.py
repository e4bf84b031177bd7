"""Extends a model, its optimizer, its memory and recorded inputs from a narrower schema to one that
extends it.

New columns have weight zero, so a widened model gives the same outputs for the old sets. The counts
of its statistics hold for the new columns too, which were zero until now.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from streamd.graph.facts.columns import NUM_FACTS, num_facts
from streamd.models.device_arrays import on_host, put
from streamd.models.inputs import LinkInputs
from streamd.models.link import LinkModel, build_model
from streamd.models.memory.memory import Memory
from streamd.models.schema_inputs import SchemaInput, schema_inputs
from streamd.models.standardize import SetStandardizer
from streamd.schema import Schema
from streamd.schema_change import edge_columns, node_columns, widened_edges, widened_nodes


def widened_model(model: LinkModel, schema: Schema) -> LinkModel:
    """The model under a schema that extends its own. The argument does not change."""
    new = build_model(model.settings, schema, 0, model.device)
    old, weights, inputs = model.state_dict(), new.state_dict(), schema_inputs(new)

    # The statistics of the only set become those of the first set.
    for path, module in new.named_modules():
        if isinstance(module, SetStandardizer):
            first = {
                f"{path}.sets.0.{n}": old.get(f"{path}.{n}") for n in module.sets[0].state_dict()
            }
            old |= {name: tensor for name, tensor in first.items() if tensor is not None}

    for name, tensor in weights.items():
        if name in old:
            weights[name] = _widen(name, old[name], tensor, inputs, model.schema, schema)
        elif name in inputs and inputs[name].optional:
            weights[name] = torch.zeros_like(tensor)

    # Facts of a widened row are not all zero: the columns of all sets repeat the old facts, and the
    # set's own flag is 1. The mean is widened in the same way, the variance without the constant.
    mean, var = model.fact_stats.mean, model.fact_stats.var
    constant = _widened_facts(torch.zeros_like(var), model.schema, schema)
    weights["fact_stats.mean"] = _widened_facts(mean, model.schema, schema)
    weights["fact_stats.var"] = _widened_facts(var, model.schema, schema) - constant
    new.load_state_dict(weights)
    return new.train(model.training)


def widened_optimizer(
    optimizer: torch.optim.AdamW, model: LinkModel, learning_rate: float, new: LinkModel
) -> torch.optim.AdamW:
    """The optimizer of a model that was widened to `new`. New parameters have no state yet."""
    out = new.optimizer(learning_rate)
    old, schema = model.schema, new.schema
    inputs = schema_inputs(new)
    state = {}
    names_of = {id(p): n for n, p in model.named_parameters()}
    by_name = {
        names_of[id(p)]: optimizer.state[p]
        for group in optimizer.param_groups
        for p in group["params"]
        if p in optimizer.state
    }
    names_of = {id(p): n for n, p in new.named_parameters()}
    params = [p for group in out.param_groups for p in group["params"]]
    for number, p in enumerate(params):
        name = names_of[id(p)]
        if name in by_name:
            state[number] = {
                key: _widen(name, value, p if value.ndim else value, inputs, old, schema).clone()
                for key, value in by_name[name].items()
            }
    out.load_state_dict({**out.state_dict(), "state": state})
    return out


def widened_memory(memory: Memory, old: Schema, new: Schema) -> Memory:
    """A copy of a memory, with the features of its messages widened from `old` to `new`, which
    extends it."""
    out = memory.copy()
    features = on_host(memory.pending_features)
    out.pending_features = put(widened_edges(features, old, new), memory.device)
    return out


def widened_inputs(inputs: LinkInputs, old: Schema, new: Schema) -> LinkInputs:
    """Recorded inputs, with facts and features widened from `old` to `new`, which extends it."""
    # Unknown nodes and padding have no set.
    nodes = widened_nodes(inputs.node_MD.numpy(), old, new)
    nodes[inputs.node_M.numpy() < 0] = 0
    hops = []
    for hop in inputs.hops:
        edges = widened_edges(hop.edge_UKD.numpy(), old, new)
        edges[~hop.mask_UK.numpy()] = 0
        hops.append(replace(hop, edge_UKD=torch.from_numpy(edges)))
    return replace(
        inputs,
        facts_ECF=_widened_facts(inputs.facts_ECF, old, new),
        node_MD=torch.from_numpy(nodes),
        hops=tuple(hops),
    )


def fits(inputs: LinkInputs, schema: Schema) -> bool:
    """Whether inputs were recorded under a schema, judged by widths: if one of two schemas extends
    the other, it is wider. A model without graph layers records no rows of features."""
    wanted = num_facts(schema), schema.node_feature_dim, schema.edge_feature_dim
    rows = inputs.facts_ECF, inputs.node_MD, inputs.hops[0].edge_UKD
    return all(x.shape[-1] == width or not x.numel() for x, width in zip(rows, wanted, strict=True))


def _widened_facts(facts: Tensor, old: Schema, new: Schema) -> Tensor:
    """Rows of facts [..., width] under `new`, which extends `old`."""
    wide = facts.new_zeros((*facts.shape[:-1], num_facts(new)))
    wide[..., : facts.shape[-1]] = facts
    if old.num_edge_sets == 1 < new.num_edge_sets:
        # The facts over all sets equal those of the only set before.
        wide[..., NUM_FACTS : 2 * NUM_FACTS] = facts
        wide[..., 2 * NUM_FACTS] = 1.0
    return wide


def _widen(
    name: str,
    tensor: Tensor,
    like: Tensor,
    inputs: Mapping[str, SchemaInput],
    old: Schema,
    new: Schema,
) -> Tensor:
    """A tensor of a model or its optimizer in the shape of the wider model's: entries of new
    columns are zero."""
    if tensor.shape == like.shape:
        return tensor
    if name not in inputs:
        raise AssertionError(f"{name} depends on the schema, but no schema_inputs() lists it")
    one = inputs[name]
    size, offset = tensor.shape[one.axis], one.offset
    if one.kind == "edge_features":
        positions = edge_columns(old, new)
    elif one.kind == "node_features":
        positions = node_columns(old, new)
    else:
        # New facts, edge sets and features of a set come at the end.
        positions = np.arange(size - offset)

    # Entries after the schema's columns are shifted by the number of new columns.
    end = np.arange(offset + len(positions), size) + like.shape[one.axis] - size
    index = np.concatenate([np.arange(offset), offset + positions, end])
    wide = tensor.new_zeros(like.shape)
    return wide.index_copy_(one.axis, torch.from_numpy(index).to(tensor.device), tensor)
