"""The inputs of a model for some events, as raw values: training on recorded inputs later
recomputes nothing."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from streamd.events import Bools, Float32, Int64
from streamd.graph.neighborhood import Hop, Neighborhood
from streamd.graph.sampler import TemporalSampler
from streamd.models.inference.new_rates import is_new


@dataclass(frozen=True, kw_only=True, slots=True)
class HopInputs:
    """`streamd.graph.neighborhood.Hop` as tensors. A model without graph layers has no neighbors:
    K = 0."""

    root_U: Tensor
    neighbor_UK: Tensor
    eid_UK: Tensor
    mask_UK: Tensor
    ago_UK: Tensor
    edge_UKD: Tensor

    def padding_spread(self, num_nodes: int) -> "HopInputs":
        """Return the same hop with padding spread over `num_nodes` nodes, instead of all of it
        naming node 0.

        Padding has no weight in the result. But a GPU adds up the gradients of one node's row one
        by one.
        """
        other_UK = torch.arange(self.mask_UK.numel(), device=self.mask_UK.device) % num_nodes
        spread_UK = torch.where(self.mask_UK, self.neighbor_UK, other_UK.view(self.mask_UK.shape))
        return dataclasses.replace(self, neighbor_UK=spread_UK)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkInputs:
    """E events with C candidates each, the true destination first, and the neighborhood of the U
    nodes among them.

    event_E: int64 event ids. facts_ECF: float32. src_E, candidate_EC: int64 indices among the U
    roots of the first hop. An event with fewer candidates repeats the true destination after them.
    weight_E: float32, 0 excludes an event from the loss. log_draws_EC: float32, of
    `streamd.graph.recent_negatives.draw_for_learning`: only the loss reads it. If the true
    destination of an event with a weight was new (`is_new_E`), so were its negatives. The rest is
    `streamd.graph.neighborhood.Neighborhood` as tensors.
    """

    event_E: Tensor
    facts_ECF: Tensor
    src_E: Tensor
    candidate_EC: Tensor
    weight_E: Tensor
    log_draws_EC: Tensor
    node_M: Tensor
    node_MD: Tensor
    age_M: Tensor
    hops: tuple[HopInputs, ...]

    @property
    def num_events(self) -> int:
        return len(self.src_E)

    @property
    def is_candidate_EC(self) -> Tensor:
        """Whether each column is a candidate, as `streamd.graph.ranking.is_candidate`: bool."""
        out = self.candidate_EC != self.candidate_EC[:, :1]
        out[:, 0] = True
        return out

    @property
    def is_new_E(self) -> Tensor:
        """Whether each event's true destination was never a destination before: bool."""
        out: Tensor = is_new(self.facts_ECF[:, 0])
        return out

    @property
    def no_state_MD(self) -> Tensor:
        """States of the nodes for a model without memory: float32[M, 0]."""
        return self.node_MD.new_zeros(len(self.node_M), 0)

    def tensors(self) -> dict[str, Tensor]:
        """All fields by name, for storing; `restored` is the inverse."""
        out = {f.name: getattr(self, f.name).contiguous() for f in fields(self) if f.name != "hops"}
        # Files hold flat names: hops.0.root_U and so on.
        for number, hop in enumerate(self.hops):
            out |= {
                f"hops.{number}.{f.name}": getattr(hop, f.name).contiguous() for f in fields(hop)
            }
        return out

    @classmethod
    def restored(cls, tensors: dict[str, Tensor]) -> "LinkInputs":
        hops: dict[int, dict[str, Tensor]] = {}
        for name in tensors:
            if name.startswith("hops."):
                _, number, field = name.split(".")
                hops.setdefault(int(number), {})[field] = tensors[name]
        # Older releases stored no log_draws_EC: they drew all negatives uniformly. Nor did they
        # store ages of features, which only events with a new destination need: these had weight 0.
        older = {
            "log_draws_EC": torch.zeros_like(tensors["candidate_EC"], dtype=torch.float32),
            "age_M": torch.full_like(tensors["node_M"], -1, dtype=torch.float32),
        }
        tensors = older | tensors
        rest = {f.name: tensors[f.name] for f in fields(cls) if f.name != "hops"}
        return cls(**rest, hops=tuple(HopInputs(**hops[n]) for n in sorted(hops)))

    def to(
        self, send: Callable[[Tensor], Tensor], edge_rows: Callable[[HopInputs], Tensor]
    ) -> "LinkInputs":
        """Copy the inputs to another device. send: copies a tensor; edge_rows: makes edge_UKD of a
        hop there. Padding is spread over the nodes."""
        hops = tuple(
            HopInputs(
                **{
                    f.name: edge_rows(hop) if f.name == "edge_UKD" else send(getattr(hop, f.name))
                    for f in fields(hop)
                }
            ).padding_spread(len(self.node_M))
            for hop in self.hops
        )
        return LinkInputs(
            **{f.name: send(getattr(self, f.name)) for f in fields(self) if f.name != "hops"},
            hops=hops,
        )

    def weighted(self, weight_E: Tensor) -> "LinkInputs":
        """Return the same inputs with each event's weight multiplied by weight_E, float32[E]."""
        return dataclasses.replace(self, weight_E=self.weight_E * weight_E)


def link_inputs(
    event_E: Int64, facts_ECF: Float32, src_E: Int64, candidate_EC: Int64, around: Neighborhood
) -> LinkInputs:
    """Make `LinkInputs` of numpy columns, every event with weight 1. The tensors are views."""
    t = torch.from_numpy
    return LinkInputs(
        event_E=t(event_E),
        facts_ECF=t(facts_ECF),
        src_E=t(src_E),
        candidate_EC=t(candidate_EC),
        weight_E=torch.ones(len(src_E)),
        log_draws_EC=torch.zeros(candidate_EC.shape),
        node_M=t(around.node_M),
        node_MD=t(around.node_MD),
        age_M=t(around.age_M),
        hops=tuple(
            HopInputs(**{f.name: t(getattr(hop, f.name)) for f in fields(hop)})
            for hop in around.hops
        ),
    )


def sampled_inputs(
    sampler: TemporalSampler,
    event_E: Int64,
    src_E: Int64,
    candidate_EC: Int64,
    time_E: Int64,
    edge_rows: Callable[[Tensor], Tensor],
) -> LinkInputs:
    """Inputs of events, each with neighborhoods as of its own time, for a model without memory,
    pair facts and node features. Every source and candidate is a root of its own.

    Args: src_E, candidate_EC: int64 node ids, the true destination first; time_E: int64
    microseconds; edge_rows: returns features float32[n, D] of event ids int64[n].
    """
    num_events, num_candidates = candidate_EC.shape
    asked = np.concatenate([src_E, candidate_EC.ravel()])
    layers = sampler.sample(asked, np.concatenate([time_E, time_E.repeat(num_candidates)]))
    t = torch.from_numpy

    # Nodes in the order of the layers, so that the roots of every hop come first.
    nodes = [asked]
    hops = []
    reached = len(asked)
    for layer in layers:
        mask_UK = t(layer.mask)
        neighbor_UK = torch.zeros(layer.mask.shape, dtype=torch.int64)
        count = int(layer.mask.sum())
        neighbor_UK[mask_UK] = torch.arange(reached, reached + count)
        # Fetch the features of sampled events only; padding stays zero.
        rows = edge_rows(t(layer.eid)[mask_UK])
        edge_UKD = rows.new_zeros(*layer.mask.shape, rows.shape[1])
        edge_UKD[mask_UK] = rows
        ago_UK = np.where(layer.mask, layer.root_time[:, None] - layer.time, 0)
        hops.append(
            HopInputs(
                root_U=torch.arange(len(layer.root)),
                neighbor_UK=neighbor_UK,
                eid_UK=t(layer.eid),
                mask_UK=mask_UK,
                ago_UK=t(ago_UK),
                edge_UKD=edge_UKD,
            )
        )
        nodes.append(layer.neighbor[layer.mask])
        reached += count

    # Sources are the first roots, then the candidates event by event.
    node_M = t(np.concatenate(nodes))
    return LinkInputs(
        event_E=t(event_E),
        facts_ECF=torch.zeros(num_events, num_candidates, 0),
        src_E=torch.arange(num_events),
        candidate_EC=torch.arange(num_events, len(asked)).view(num_events, num_candidates),
        weight_E=torch.ones(num_events),
        log_draws_EC=torch.zeros(num_events, num_candidates),
        node_M=node_M,
        node_MD=torch.zeros(len(node_M), 0),
        age_M=torch.full((len(node_M),), -1.0),
        hops=tuple(hops),
    )


def joined(parts: Sequence[tuple[LinkInputs, Tensor]]) -> tuple[LinkInputs, Tensor]:
    """Concatenate several inputs and the states of their nodes, for one forward pass instead of
    several."""
    if len(parts) == 1:
        return parts[0]
    return joined_inputs([p for p, _ in parts]), torch.cat([state for _, state in parts])


def joined_inputs(inputs: Sequence[LinkInputs]) -> LinkInputs:
    """Concatenate several inputs. A node that occurs in two of them becomes two nodes, each with
    its own state."""
    if len(inputs) == 1:
        return inputs[0]

    # The offset of each part's indices among nodes and among roots.
    nodes = np.cumsum([0] + [len(p.node_M) for p in inputs]).tolist()
    roots = np.cumsum([0] + [len(p.hops[0].root_U) for p in inputs]).tolist()

    def cat(field: str, of: Sequence[object], shift: Sequence[int] | None = None) -> Tensor:
        rows = [getattr(x, field) for x in of]
        return torch.cat([r + by for r, by in zip(rows, shift, strict=False)] if shift else rows)

    # Hop by hop: indices are shifted, ids and times are not.
    hops = []
    for same in zip(*(p.hops for p in inputs), strict=True):
        hops.append(
            HopInputs(
                root_U=cat("root_U", same, nodes),
                neighbor_UK=cat("neighbor_UK", same, nodes),
                eid_UK=cat("eid_UK", same),
                mask_UK=cat("mask_UK", same),
                ago_UK=cat("ago_UK", same),
                edge_UKD=cat("edge_UKD", same),
            )
        )
    return LinkInputs(
        event_E=cat("event_E", inputs),
        facts_ECF=cat("facts_ECF", inputs),
        src_E=cat("src_E", inputs, roots),
        candidate_EC=cat("candidate_EC", inputs, roots),
        weight_E=cat("weight_E", inputs),
        log_draws_EC=cat("log_draws_EC", inputs),
        node_M=cat("node_M", inputs),
        node_MD=cat("node_MD", inputs),
        age_M=cat("age_M", inputs),
        hops=tuple(hops),
    )


def some_events(
    inputs: LinkInputs, state_MD: Tensor, events: slice, windows: bool
) -> tuple[LinkInputs, Tensor]:
    """The inputs of some of the events, with the states of the nodes that these events need.

    windows: whether the hops are windows of time, all with the same roots.
    """
    # The roots of these events.
    src, candidates = inputs.src_E[events].numpy(), inputs.candidate_EC[events].numpy()
    roots, index = np.unique(np.concatenate([src, candidates.ravel()]), return_inverse=True)
    around = Neighborhood(
        np.arange(len(inputs.node_M)),
        inputs.node_MD.numpy(),
        inputs.age_M.numpy(),
        tuple(Hop(**{f.name: getattr(h, f.name).numpy() for f in fields(h)}) for h in inputs.hops),
        windows,
    ).subset(roots)
    kept = torch.from_numpy(around.node_M)
    some = link_inputs(
        inputs.event_E[events].numpy(),
        inputs.facts_ECF[events].numpy(),
        index[: len(src)],
        index[len(src) :].reshape(candidates.shape),
        around,
    )
    return (
        dataclasses.replace(
            some,
            weight_E=inputs.weight_E[events],
            log_draws_EC=inputs.log_draws_EC[events],
            node_M=inputs.node_M[kept],
        ),
        state_MD[kept],
    )


def without_deleted(
    inputs: LinkInputs,
    state_MD: Tensor,
    is_gone: Callable[[Int64], Bools],
    is_deleted: Callable[[Int64], Bools],
) -> tuple[LinkInputs, Tensor] | None:
    """Remove deleted nodes and events from inputs and states: deleted events get weight 0, deleted
    neighbors are masked, features of deleted nodes are zero.

    Args: is_gone: whether node ids are deleted; is_deleted: whether event ids are deleted as single
    edges. Returns: None if nothing in the inputs is deleted.
    """

    # Deleted nodes, and events that are deleted themselves or through one of their endpoints.
    gone_M = torch.from_numpy(is_gone(inputs.node_M.numpy()))
    gone_U = gone_M[inputs.hops[0].root_U]
    gone_E = (
        torch.from_numpy(is_deleted(inputs.event_E.numpy()))
        | gone_U[inputs.src_E]
        | gone_U[inputs.candidate_EC[:, 0]]
    )

    # Neighbors that are deleted, or that a deleted event leads to.
    hops = []
    hidden = False
    for hop in inputs.hops:
        gone_UK = (
            torch.from_numpy(is_deleted(hop.eid_UK.numpy()))
            | gone_M[hop.neighbor_UK]
            | gone_M[hop.root_U][:, None]
        )
        gone_UK &= hop.mask_UK
        hidden |= bool(gone_UK.any())
        hops.append(
            dataclasses.replace(
                hop,
                mask_UK=hop.mask_UK & ~gone_UK,
                edge_UKD=hop.edge_UKD * (~gone_UK)[..., None].float(),
            )
        )

    if not (gone_M.any() or gone_E.any() or hidden):
        return None

    # Deleted events have no weight in the loss; their facts, and the features and states of deleted
    # nodes, are zero.
    kept_E = (~gone_E).float()
    kept_M = (~gone_M).float()[:, None]
    return dataclasses.replace(
        inputs,
        facts_ECF=inputs.facts_ECF * kept_E[:, None, None],
        weight_E=inputs.weight_E * kept_E,
        hops=tuple(hops),
        node_MD=inputs.node_MD * kept_M,
        age_M=inputs.age_M.masked_fill(gone_M, -1.0),
    ), state_MD * kept_M
