"""What was learned under a narrower schema, as one that extends it has it: a model, its optimizer,
its memory, and recorded inputs.

New columns weigh nothing, so a widened model says of the old sets what it said before. The counts
behind its statistics hold for the new columns too, which were zero until now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamd.graph.facts.columns import NUM_FACTS, num_facts
from streamd.models.arrays import on_host, put
from streamd.models.inputs import LinkInputs
from streamd.models.link import LinkModel, build_model
from streamd.models.memory.memory import Memory
from streamd.schema import Schema
from streamd.schema_change import edge_places, node_places, widened_edges, widened_nodes

STATISTICS = ("edge_stats", "node_stats")
"""The standardisers of features: one, or with several sets one each."""
ZERO_AT_FIRST = ("encoder.node_in.weight", "head_set.weight")
"""Weights that a model has only with node features or with several edge sets."""


def widened_model(model: LinkModel, schema: Schema) -> LinkModel:
    """A model as one under a schema that extends its own. The model does not change."""
    new = build_model(model.settings, schema, 0, model.device)
    old = model.state_dict()
    weights = new.state_dict()
    for name, tensor in weights.items():
        was = _old_name(name, old)
        if was is None:
            weights[name] = torch.zeros_like(tensor) if name in ZERO_AT_FIRST else tensor
        else:
            weights[name] = _tensor(name, old[was], tensor, model, new)
    new.load_state_dict(weights)
    return new.train(model.training)


def widened_optimizer(
    optimizer: torch.optim.AdamW, model: LinkModel, learning_rate: float, new: LinkModel
) -> torch.optim.AdamW:
    """The optimizer of a model that was widened to `new`. What was not there has no state yet."""
    out = new.optimizer(learning_rate)
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
                key: (_tensor(name, value, p, model, new) if value.ndim else value).clone()
                for key, value in by_name[name].items()
            }
    out.load_state_dict({**out.state_dict(), "state": state})
    return out


def widened_memory(memory: Memory, old: Schema, new: Schema) -> Memory:
    """A copy of a memory whose messages have features as a schema has them that extends `old`."""
    out = memory.copy()
    features = on_host(memory.pending_features)
    out.pending_features = put(widened_edges(features, old, new), memory.device)
    return out


def widened_inputs(inputs: LinkInputs, old: Schema, new: Schema) -> LinkInputs:
    """Recorded inputs with facts and features as a schema has them that extends `old`."""
    facts = inputs.facts_ECF.numpy()
    wide = np.zeros((*facts.shape[:-1], num_facts(new)), facts.dtype)
    wide[..., : facts.shape[-1]] = facts
    if old.num_edge_sets == 1 < new.num_edge_sets:
        # All sets together are the only one there was.
        wide[..., NUM_FACTS : 2 * NUM_FACTS] = facts
        wide[..., 2 * NUM_FACTS] = 1.0

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
        facts_ECF=torch.from_numpy(wide),
        node_MD=torch.from_numpy(nodes),
        hops=tuple(hops),
    )


def fits(inputs: LinkInputs, schema: Schema) -> bool:
    """Whether inputs were recorded under a schema, as far as widths tell: of two that extend each
    other one is wider. A model without graph layers records no rows of features."""
    wanted = num_facts(schema), schema.node_feature_dim, schema.edge_feature_dim
    rows = inputs.facts_ECF, inputs.node_MD, inputs.hops[0].edge_UKD
    return all(x.shape[-1] == width or not x.numel() for x, width in zip(rows, wanted, strict=True))


def _old_name(name: str, old: Mapping[str, Tensor]) -> str | None:
    """The name under which a narrower model has a tensor; None where it has none."""
    if name in old:
        return name
    # The statistics of the only set there was are those of the first.
    for kind in STATISTICS:
        first = f"{kind}.sets.0."
        if name.startswith(first) and (was := f"{kind}.{name.removeprefix(first)}") in old:
            return was
    return None


def _tensor(name: str, tensor: Tensor, like: Tensor, model: LinkModel, new: LinkModel) -> Tensor:
    """A tensor of a model, or one of its optimizer, in the shape of the wider model's."""
    if tensor.shape == like.shape:
        return tensor
    old_schema, schema = model.schema, new.schema
    edges = edge_places(old_schema, schema), schema.edge_feature_dim
    # One-hot of the set ends a row of facts, so further sets come at the end.
    facts = np.arange(num_facts(old_schema)), num_facts(schema)
    dim = model.settings.dim

    # Statistics are of a set's own features, of which further ones come at the end.
    if name.startswith(STATISTICS):
        return _placed(tensor, 0, np.arange(len(tensor)), like.shape[-1])
    if name.startswith("fact_stats."):
        out = _placed(tensor, 0, *facts)
        if old_schema.num_edge_sets == 1:
            out[NUM_FACTS : 2 * NUM_FACTS] = tensor
            out[2 * NUM_FACTS] = 1.0 if name.endswith(".mean") else 0.0
        return out

    # Weights: what they are of says where the columns lie that differ.
    blocks: Sequence[tuple[str, int, tuple[NDArray[np.int64], int]]] = (
        ("pair.0.", 0, facts),
        ("label_head.", tensor.shape[-1] - num_facts(old_schema), facts),
        ("updater.gru.weight_ih", 2 * dim, edges),
        ("encoder.layers.", dim, edges),
        ("encoder.node_in.", 0, (node_places(old_schema, schema), schema.node_feature_dim)),
        ("head_set.", 0, (np.arange(old_schema.num_edge_sets), schema.num_edge_sets)),
    )
    for prefix, offset, (places, width) in blocks:
        if name.startswith(prefix):
            return _placed(tensor, offset, places, width)
    raise AssertionError(f"{name} depends on the schema in an unknown way")


def _placed(tensor: Tensor, offset: int, places: NDArray[np.int64], width: int) -> Tensor:
    """A tensor whose columns from `offset` on lie at other places of a block of `width` columns;
    columns before and behind the block stay, new ones are zero."""
    behind = tensor.shape[-1] - offset - len(places)
    out = tensor.new_zeros((*tensor.shape[:-1], offset + width + behind))
    at = np.concatenate([np.arange(offset), offset + places, offset + width + np.arange(behind)])
    out[..., torch.from_numpy(at).to(tensor.device)] = tensor
    return out
