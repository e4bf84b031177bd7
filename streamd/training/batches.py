"""Training steps: they join a chunk with replayed chunks, and are moved to the model's device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from streamd.models import EdgeRows, LinkInputs, LinkModel, Memory, link_loss
from streamd.models.inputs import joined, joined_inputs
from streamd.models.labels import LabelInputs
from streamd.ranks import Ranks
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.padding import PackedInputs
from streamd.training.replay import ReplayChunk


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of a training step, on the model's device. With several ranks, each has its share.

    edges: rows of the chunk, with which memory is updated.
    inputs: events to train on, replayed ones before the chunk's own; None without any.
    past_states: memory of the replayed nodes, float32[M, D] each.
    own_node_M: the chunk's nodes, int64[M]; None if none of its events is trained on.
    labels: the chunk's. label_share: this rank's share of the labels of all ranks.
    events: sum of the events' weights over all ranks.
    packed: padded inputs, for steps that CUDA graphs may replay; else None.
    """

    edges: EdgeRows
    inputs: LinkInputs | None
    past_states: list[Tensor]
    own_node_M: Tensor | None
    labels: LabelInputs | None
    label_share: float
    events: float
    packed: PackedInputs | None = None


@dataclass(frozen=True, slots=True)
class RecordedLabels:
    """Labels of a chunk as they were recorded. num_labels: of all ranks together."""

    inputs: LabelInputs
    num_labels: int


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A training step as it was recorded, before its transfer to the device.

    chunk: its inputs; None if none of its events was scored. weight_E: float32[E], their weights.
    past: joined inputs of the replayed chunks and the states of their nodes, as one pair, or empty.
    own_events, past_events: sums of weights over all ranks.
    """

    edges: EdgeRows
    chunk: ReplayChunk | None
    weight_E: Tensor
    past: list[tuple[LinkInputs, Tensor]]
    labels: RecordedLabels | None
    own_events: float
    past_events: float


def planned_steps(
    ranks: Ranks,
    edges: Sequence[EdgeRows],
    chunks: Sequence[ReplayChunk | None],
    weights: Sequence[Tensor],
    past: Sequence[ReplayChunk],
    labels: Sequence[RecordedLabels | None],
) -> list[PlannedStep]:
    """Plan the training steps of a window, one for each chunk.

    past: chunks to replay, distributed over the steps in turn.
    """
    parts = [past[step :: len(edges)] for step in range(len(edges))]
    joins = [[joined([(c.inputs, c.state_MD) for c in part])] if part else [] for part in parts]

    # Sum the weights of each step over all ranks: losses are divided by the sums.
    own = [
        0.0 if s is None else float(s.inputs.weighted(w).weight_E.sum())
        for s, w in zip(chunks, weights, strict=True)
    ]
    of_past = [sum(float(inputs.weight_E.sum()) for inputs, _ in join) for join in joins]
    totals = ranks.total([*own, *of_past])
    pairs = zip(totals[: len(own)], totals[len(own) :], strict=True)
    return [
        PlannedStep(*step, *events)
        for *step, events in zip(edges, chunks, weights, joins, labels, pairs, strict=True)
    ]


def prepare_step(step: PlannedStep, transfer: DeviceTransfer, pads: bool) -> Step:
    """Move the inputs of a training step to the device.

    pads: whether CUDA graphs may replay steps. Steps with labels, and steps with replayed events
    only, are never padded.
    """
    learned = [inputs for inputs, _ in step.past]
    own = None
    if step.chunk is not None and step.own_events:
        own = step.chunk.inputs.weighted(step.weight_E)
        learned.append(own)
    there = [transfer.inputs(inputs) for inputs in learned]
    labels = step.labels
    inputs = joined_inputs(there) if there else None
    packed = None
    if pads and inputs is not None and own is not None and labels is None:
        packed = PackedInputs.of(inputs)
        inputs = packed.without_padding(inputs)
    return Step(
        edges=step.edges,
        packed=packed,
        inputs=inputs,
        past_states=[transfer.send(state_MD) for _, state_MD in step.past],
        own_node_M=None
        if own is None or inputs is None
        else inputs.node_M[len(inputs.node_M) - len(own.node_M) :],
        labels=None if labels is None else transfer.labels(labels.inputs),
        label_share=0.0 if labels is None else len(labels.inputs.set_L) / labels.num_labels,
        events=step.past_events + step.own_events,
    )


def step_losses(
    model: LinkModel,
    memory: Memory,
    step: Step,
    updated_PD: Tensor,
    dropout: int,
    transfer: DeviceTransfer,
) -> tuple[list[Tensor], Tensor | None]:
    """Losses of a step, of links and of labels, each as this rank's share of the mean over all
    ranks.

    updated_PD: as in `LinkModel.over`. dropout: a `dropout_key`.

    Returns: the losses, and the sum of the losses of links, None without links.
    """
    losses = []
    of_links = None

    # Links of this chunk and of replayed chunks, in one batch.
    if step.inputs is not None and step.events:
        states = list(step.past_states)
        if step.own_node_M is not None:
            states.append(memory.gather(step.own_node_M, updated_PD))
        with transfer.autocast():
            logits_EC = model(step.inputs, torch.cat(states), dropout)
        inputs = step.inputs
        of_links = link_loss(
            logits_EC.float(), inputs.weight_E, inputs.is_candidate_EC, inputs.log_draws_EC
        )
        losses.append(of_links / step.events)

    # Labels of this chunk, from the same memory.
    labels = step.labels
    if labels is not None and model.label_head is not None:
        state_MD = memory.gather(labels.around.node_M, updated_PD)
        # A rank without labels takes part too: gradients of other ranks may concern its nodes.
        loss = state_MD.sum() * 0.0
        if len(labels.set_L):
            predicted = model.labels(labels, state_MD)
            loss = model.label_head.losses(predicted, labels.target_LT, labels.set_L)
        losses.append(loss * step.label_share)
    return losses, of_links


def optimize(
    losses: Sequence[Tensor],
    parameters: Sequence[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
) -> None:
    """Take one optimizer step along the gradients of all ranks' losses; none without losses."""
    if not losses:
        return
    for parameter in parameters:
        parameter.grad = None
    together = torch.stack(list(losses)).sum()
    if together.requires_grad:
        together.backward()  # type: ignore[no-untyped-call]
    ranks.add_gradients(parameters)
    optimizer.step()
