"""A `LinkModel` for answering: any architecture, on any device."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from streamd.events import Float32, Int64
from streamd.graph.label_rows import LabelRows
from streamd.graph.neighborhood import Neighborhood
from streamd.models.device_arrays import Array, as_array, as_tensor, on_host
from streamd.models.inference.inference import vector_widths
from streamd.models.inputs import LinkInputs, link_inputs
from streamd.models.labels import LabelInputs
from streamd.models.link import LinkModel
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.memory import Memory


class TorchModel:
    """`streamd.models.inference.inference.Inference` documents each method."""

    def __init__(self, model: LinkModel) -> None:
        """model: its weights no longer change."""
        self.model = model
        self.settings = model.settings
        self.schema = model.schema

    @property
    def device(self) -> str:
        return str(self.model.device)

    @property
    def has_labels(self) -> bool:
        return self.model.label_head is not None

    @property
    def widths(self) -> tuple[int, int, int]:
        has_both = self.model.new_score is not None
        return vector_widths(self.settings, self.schema, has_both, has_both)

    def advance(self, memory: Memory, chunk: EdgeRows) -> None:
        self.model.advance(memory, chunk)

    @torch.no_grad()
    def updated(self, memory: Memory) -> Array:
        return as_array(self.model.updated(memory))

    @torch.no_grad()
    def embed(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Array, Array, Array]:
        inputs = self._to_device(_inputs_around(around))
        z_UD = self.model.embed(inputs, self._states(memory, updated_PD, inputs))
        src_UD, dst_UD = self.model.projections(z_UD, inputs)
        return as_array(z_UD), as_array(src_UD), as_array(dst_UD)

    @torch.no_grad()
    def logits(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        facts = self._put(facts_RF)
        out = self.model.pair_logits(facts)
        if self.model.has_graph:
            out = out + self._residual(facts, src_RD, dst_RD)
        logits_R: Float32 = on_host(out)
        return logits_R

    @torch.no_grad()
    def pair_logits(self, facts_RF: Float32) -> Float32:
        logits_R: Float32 = on_host(self.model.pair_logits(self._put(facts_RF)))
        return logits_R

    @torch.no_grad()
    def residual(self, facts_RF: Float32, src_RD: Array, dst_RD: Array) -> Float32:
        added_R: Float32 = on_host(self._residual(self._put(facts_RF), src_RD, dst_RD))
        return added_R

    def forget_rate(self) -> None:
        self.model.new_destinations.stop()

    @contextmanager
    def keeping_rate(self) -> Iterator[None]:
        rate = self.model.new_destinations
        before = rate.counts.clone()
        try:
            yield
        finally:
            rate.load_state_dict({"counts": before})

    @property
    def mean_facts(self) -> Float32:
        mean_F: Float32 = on_host(self.model.fact_stats.shift)
        return mean_F

    @torch.no_grad()
    def neighbor_weights(
        self, memory: Memory, updated_PD: Array, around: Neighborhood
    ) -> tuple[Float32, ...]:
        inputs = self._to_device(_inputs_around(around))
        weights = self.model.neighbor_weights(inputs, self._states(memory, updated_PD, inputs))
        return tuple(on_host(weight_UK) for weight_UK in weights)

    @torch.no_grad()
    def labels(self, memory: Memory, updated_PD: Array, rows: LabelRows, set_U: Int64) -> Float32:
        head = self.model.label_head
        assert head is not None
        inputs = LabelInputs(
            self._to_device(_inputs_around(rows.around)),
            self._put(np.arange(len(set_U))),
            set_U,
            self._put(rows.facts_UF),
            self._put(rows.history_UT),
            self._put(np.zeros_like(rows.history_UT)),
        )
        out_UT = self.model.labels(inputs, self._states(memory, updated_PD, inputs.around))
        predicted: Float32 = on_host(head.predictions(out_UT, set_U))
        return predicted

    def _residual(self, facts: Tensor, src_RD: Array, dst_RD: Array) -> Tensor:
        return self.model.residual_of(facts, as_tensor(src_RD), as_tensor(dst_RD))

    def _states(self, memory: Memory, updated_PD: Array, inputs: LinkInputs) -> Tensor:
        """States of nodes with pending messages applied, float32[M, D]."""
        return memory.gather(inputs.node_M, as_tensor(updated_PD))

    def _put(self, array: Int64 | Float32) -> Tensor:
        return torch.from_numpy(array).to(self.model.device)

    def _to_device(self, inputs: LinkInputs) -> LinkInputs:
        """The inputs on the model's device."""
        device = self.model.device
        if device.type == "cpu":
            return inputs
        return inputs.to(lambda t: t.to(device), lambda hop: hop.edge_UKD.to(device))


def _inputs_around(around: Neighborhood) -> LinkInputs:
    """A neighborhood as inputs of a model, without events."""
    none = np.zeros((0, 1), np.int64)
    return link_inputs(none[:, 0], np.zeros((0, 1, 1), np.float32), none[:, 0], none, around)
