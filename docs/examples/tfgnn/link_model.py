"""A PyG model that separates the pair of each event from others, by the samples of a folder."""

from pathlib import Path

import torch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import HeteroConv, SAGEConv

from streamd.tfgnn.records.convert import to_hetero_data
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.schema.schema import read_schema

schema = read_schema(Path("samples/schema.pbtxt"))
codec = Codec(schema)
train, test = (
    [to_hetero_data(graph, schema) for graph in codec.read(Path("samples", name))]
    for name in ("train.tfrecord@4", "test.tfrecord")
)
CLICKS, REVERSED = ("user", "clicks", "item"), ("item", "rev_clicks", "user")


class Model(torch.nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.of_user, self.of_item = torch.nn.Linear(1, dim), torch.nn.Embedding(20, dim)
        self.layers = torch.nn.ModuleList(
            HeteroConv({kind: SAGEConv((dim, dim), dim) for kind in (CLICKS, REVERSED)})
            for _ in range(2)
        )

    def forward(self, batch):
        ids = torch.tensor([int(id[1:]) for of_sample in batch["item"]["#id"] for id in of_sample])
        x = {"user": self.of_user(batch["user"].age[:, None] / 100), "item": self.of_item(ids)}
        for layer in self.layers:
            new = layer(x, {CLICKS: batch[CLICKS].edge_index, REVERSED: batch[REVERSED].edge_index})
            x = {name: x[name] + torch.relu(new[name]) for name in x}
        # A row of the readout is a pair: edges lead to it from its two nodes, in this order.
        source = batch["user", "_readout/source", "_readout"].edge_index[0]
        target = batch["item", "_readout/target", "_readout"].edge_index[0]
        return (x["user"][source] * x["item"][target]).sum(1)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    for batch in DataLoader(train, batch_size=64, shuffle=True):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(batch), batch["_readout"].label
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

with torch.no_grad():
    ranks = []
    for sample in DataLoader(test):
        scores = model(sample)
        ranks.append(1 + int((scores[1:] >= scores[0]).sum()))
print(
    f"{len(train)} samples learned, {len(test)} ranked: MRR {sum(1 / rank for rank in ranks) / len(ranks):.2f}"
)
