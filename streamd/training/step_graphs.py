"""Training steps as CUDA graphs: one call launches all kernels of a step, about 550.

A graph replays the same kernels on the same memory, so the values of a step are first copied into
the graph's buffers, padded to sizes that many steps share. Padding does not change the result: see
`streamd.training.padding`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.nn.functional import embedding

from streamd.gpu import lacks_memory
from streamd.models import LinkModel, Memory, link_loss
from streamd.models.architectures import ARCHITECTURES
from streamd.models.device_arrays import as_tensor
from streamd.telemetry import metrics
from streamd.training.batches import Step
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.padding import PackedInputs, round_up

logger = structlog.get_logger()
MAX_GRAPHS = 32
"""The most graphs that are kept, each with a padded copy of a step's inputs on the device. A run
over 36,000 events needed 4; with replay, steps have more sizes."""
Values = dict[str, Tensor]
"""Tensors by name."""
MESSAGES = ("own_PD", "other_PD", "message_PF", "since_P")
"""Names of the values of pending messages."""


@dataclass(slots=True)
class StepGraph:
    """A training step of certain sizes, and its CUDA graph once captured.

    inputs, of_memory: the buffers that it reads.
    updated_PD: the buffer that it writes, the states of the nodes with a pending message.
    """

    inputs: PackedInputs
    of_memory: Values
    graph: Any = None
    updated_PD: Tensor | None = None


class StepGraphs:
    """Runs training steps of one model and one optimizer, on a CUDA stream of their own. Owner: one
    thread.

    The first step of each combination of sizes runs kernel by kernel, also on padded inputs, so
    that it changes the weights to the same bits as its graph would. The second one is captured.
    """

    def __init__(
        self, model: LinkModel, optimizer: torch.optim.AdamW, transfer: DeviceTransfer
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._transfer = transfer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._graphs: dict[Any, StepGraph] = {}
        """By the sizes of inputs and of messages, the most recently used last."""
        self._failed: list[Any] = []
        device = transfer.device
        # Buffers that every graph reads, allocated once: the key of dropout, the weights of a
        # step's events, and the sum of losses so far.
        self._dropout = torch.zeros((), dtype=torch.int64, device=device)
        self._events = torch.ones((), device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self._pool: Any = None
        if device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()

    def are_of(self, model: LinkModel, optimizer: torch.optim.AdamW) -> bool:
        """Whether these are the graphs of this model and this optimizer."""
        return self._model is model and self._optimizer is optimizer

    def can_learn(self, step: Step, memory: Memory) -> bool:
        """Whether a step can run here: a padded one with events, if memory has pending messages.
        Deletes before it must be applied to memory already."""
        return step.packed is not None and bool(step.events) and len(memory.pending_node) > 0

    @contextmanager
    def epoch(self, dropout: int) -> Iterator[None]:
        """A context for the steps of an epoch. dropout: key of the dropout's hash."""
        self.total.zero_()
        self._dropout.fill_(dropout - (1 << 64) if dropout >= 1 << 63 else dropout)
        stream = self._transfer.graph_stream
        if stream is None:
            yield
            return
        # Each stream waits for the other before it continues.
        outer = torch.cuda.current_stream()
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)

    def learn(self, memory: Memory, step: Step) -> Tensor:
        """Take one training step. Returns: states of the nodes with a pending message under the
        weights before it, float32[P, D]."""
        assert step.packed is not None
        values = memory_values(self._model, memory, step)
        room = {n: round_up(len(t)) if n in MESSAGES else len(t) for n, t in values.items()}
        key = (step.packed.shapes, tuple(room.values()))
        found = self._graphs.pop(key, None)
        is_new = found is None
        if found is None:
            if len(self._graphs) == MAX_GRAPHS:
                self._drop_oldest()
            of_memory = {n: t.new_zeros(room[n], *t.shape[1:]) for n, t in values.items()}
            found = StepGraph(step.packed.zeros_like(), of_memory)
        # Keep the order of use.
        self._graphs[key] = found
        # Copy the step into the buffers. Old values after the step's own messages may remain: no
        # event reads them.
        found.inputs.fill(step.packed)
        for name, tensor in values.items():
            found.of_memory[name][: len(tensor)].copy_(tensor)
        self._events.fill_(step.events)

        # Run kernel by kernel at first, and always if capturing failed.
        if found.graph is None and not is_new and self._transfer.captures_steps:
            self._capture(found)
        if found.graph is None:
            found.updated_PD = self._run(found)
            metrics.gpu_steps.labels("launched").inc()
        else:
            found.graph.replay()
            metrics.gpu_steps.labels("replayed").inc()
        assert found.updated_PD is not None
        if not self._model.has_memory:
            return as_tensor(memory.pending_other)
        return found.updated_PD[: len(memory.pending_node)]

    def _drop_oldest(self) -> None:
        """Drop the least recently used graph, once the GPU has finished with it."""
        if self._pool is not None:
            torch.cuda.synchronize()
        del self._graphs[next(iter(self._graphs))]

    def _capture(self, into: StepGraph) -> None:
        """Record the kernels of a step as a graph, without executing them."""
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Free cached memory first: a graph needs its own memory, and during a capture none is
        # freed.
        torch.cuda.empty_cache()
        try:
            # Another thread prepares the next step meanwhile, and may allocate and wait.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            into.updated_PD = self._run(into)
            graph.capture_end()
        except RuntimeError as error:
            self._end_failed_capture(graph)
            if lacks_memory(error):
                raise
            self._transfer.captures_steps = False
            logger.warning("gpu_step_not_captured", error=str(error), effect="steps are slower")
            return
        into.graph = graph

    def _end_failed_capture(self, graph: Any) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            # CUDA has ended the capture, but the allocator still allocates for it and asks the
            # graph for its stream: keep the graph, and end the allocation.
            self._failed.append(graph)
            device = self._transfer.device
            with suppress(RuntimeError):
                end: Any = torch._C._cuda_endAllocateToPool
                end(
                    torch.cuda.current_device() if device.index is None else device.index,
                    self._pool,
                )

    def _run(self, of: StepGraph) -> Tensor:
        """Run one training step on padded values. Returns: the updated states, padded."""
        model, inputs = self._model, of.inputs.inputs
        updated_PD, states_MD = node_states(model, of.of_memory)
        # A weight cast for one graph must not be used by another.
        with self._transfer.autocast(keep_casts=False):
            logits_EC = model(inputs, states_MD, self._dropout)
        loss = link_loss(
            logits_EC.float(), inputs.weight_E, inputs.is_candidate_EC, inputs.log_draws_EC
        )
        self.total += loss.detach()
        for parameter in self._parameters:
            parameter.grad = None
        (loss / self._events).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return updated_PD.detach()


def can_replay(model: LinkModel, transfer: DeviceTransfer) -> bool:
    """Whether `StepGraphs` may run steps of a model. It may not for models of plug-ins: their
    layers may mix all rows, padding too."""
    return transfer.replays_steps and model.has_graph and model.settings.name in ARCHITECTURES


def memory_values(model: LinkModel, memory: Memory, step: Step) -> Values:
    """The inputs of a step that come from memory: rows of all nodes, padding included, the indices
    of their messages, and the messages. Nodes of replayed events come first, as in the inputs."""
    assert step.packed is not None
    num_updated = len(memory.pending_node)
    past = sum(len(states_MD) for states_MD in step.past_states)
    node_M = step.packed.inputs.node_M
    row_MD, index_M, waits_M = memory.rows_and_messages(node_M[past:], num_updated)
    if past:
        row_MD = torch.cat([*step.past_states, row_MD])
        # States of replayed nodes stay as recorded: no message changes them.
        index_M = torch.cat([torch.arange(past, device=node_M.device) % num_updated, index_M])
        waits_M = torch.cat([waits_M.new_zeros(past), waits_M])
    values = {"row_MD": row_MD, "index_M": index_M, "waits_M": waits_M}
    if model.has_memory:
        values["own_PD"] = as_tensor(memory.rows.state(memory.pending_node))
        values["other_PD"] = as_tensor(memory.pending_other)
        values["message_PF"] = as_tensor(memory.pending_features)
        values["since_P"] = as_tensor(memory.since_last())
    return values


def node_states(model: LinkModel, values: Values) -> tuple[Tensor, Tensor]:
    """The states of nodes with a pending message, float32[P, D], and of all nodes, float32[M,
    D]."""
    row_MD = values["row_MD"]
    if not model.has_memory:
        return row_MD[:0], row_MD
    features_PF = model.edge_stats(values["message_PF"])
    updated_PD = model.updater.from_parts(
        values["own_PD"], values["other_PD"], features_PF, values["since_P"], model.gap()
    )
    updated_MD = embedding(values["index_M"], updated_PD)
    return updated_PD, torch.where(values["waits_M"][:, None], updated_MD, row_MD)
