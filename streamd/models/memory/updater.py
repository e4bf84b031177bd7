"""The learned part of TGN's memory: the GRU that turns messages into states."""

import torch
from torch import Tensor, nn

from streamd.models.device_arrays import as_tensor
from streamd.models.layers.time_encoding import TimeEncoding, in_gaps
from streamd.models.memory.memory import Memory
from streamd.models.schema_inputs import SchemaInput


class MemoryUpdater(nn.Module):
    """The GRU that applies messages: [own state, other endpoint's state, features, time since] ->
    new state."""

    def __init__(self, dim: int, feature_dim: int, time_dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.time = TimeEncoding(time_dim)
        self.gru = nn.GRUCell(2 * dim + feature_dim + time_dim, dim)

    def schema_inputs(self) -> dict[str, SchemaInput]:
        return {"gru.weight_ih": SchemaInput("edge_features", 2 * self.dim)}

    def forward(self, memory: Memory, features_PD: Tensor, gap_us: Tensor) -> Tensor:
        """New states of the nodes with a pending message, float32[P, D]. features_PD:
        standardised."""
        node = memory.pending_node
        other = as_tensor(memory.pending_other)
        if not len(node):
            return other

        # A node's first message has no previous one: its time since is 0.
        own = as_tensor(memory.rows.state(node))
        return self.from_parts(own, other, features_PD, as_tensor(memory.since_last()), gap_us)

    def from_parts(
        self, own_PD: Tensor, other_PD: Tensor, features_PD: Tensor, since_P: Tensor, gap_us: Tensor
    ) -> Tensor:
        """`forward` from the parts of the messages. since_P: int64 microseconds since the node's
        previous message."""
        message = torch.cat([own_PD, other_PD, features_PD, self.time(in_gaps(since_P, gap_us))], 1)
        updated: Tensor = self.gru(message, own_PD)
        return updated
