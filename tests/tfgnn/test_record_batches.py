"""Batches of records as one graph are the graphs of the records side by side."""

from itertools import islice

import numpy as np
import pytest

from streamd.errors import TFGNNError
from streamd.tfgnn.records.examples import Codec
from streamd.tfgnn.records.record_batches import read_batches
from streamd.tfgnn.records.records import write_records
from streamd.tfgnn.sampling.random_graphs import random_graphs
from streamd.tfgnn.schema.messages import Example
from tests.tfgnn.test_random_graphs import each_schema, parts, rows


def check_side_by_side(batch, graphs, schema):
    """Hold a batch to the graphs that it is made of, item by item."""
    every = [dict(parts(graph)) for graph in graphs]
    assert {key: rows(value) for key, value in parts(batch)} == {
        key: [row for one in every for row in rows(one[key])] for key in every[0]}
    for name, nodes in batch.node_sets.items():
        assert nodes.sizes_C.tolist() == [size for graph in graphs for size in graph.node_sets[name].sizes_C.tolist()]
    for name, edges in batch.edge_sets.items():
        ends, before = schema.edge_sets[name], dict.fromkeys(batch.node_sets, 0)
        source, target = [], []
        for graph in graphs:
            source += (graph.edge_sets[name].source_E + before[ends.source]).tolist()
            target += (graph.edge_sets[name].target_E + before[ends.target]).tolist()
            before = {node_set: number + graph.node_sets[node_set].num for node_set, number in before.items()}
        assert (edges.source_E.tolist(), edges.target_E.tolist()) == (source, target)
        assert edges.sizes_C.tolist() == [size for graph in graphs for size in graph.edge_sets[name].sizes_C.tolist()]


@each_schema
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("size", [1, 8, 100])
def test_a_batch_has_the_graphs_of_its_records_side_by_side(schema, components, size, tmp_path):
    codec, graphs = Codec(schema), list(random_graphs(schema, 20, components=components))
    codec.write(tmp_path / "x.tfrecord", graphs)
    batches = list(read_batches(codec, tmp_path / "x.tfrecord", size))
    assert len(batches) == -(-20 // size)
    rest = iter(graphs)
    for batch in batches:
        check_side_by_side(batch, list(islice(rest, size)), schema)


@each_schema
def test_records_of_other_numbers_of_components_lie_in_one_batch(schema, tmp_path):
    graphs = [next(random_graphs(schema, 1, seed=n, components=n)) for n in (1, 3, 2)]
    Codec(schema).write(tmp_path / "x.tfrecord", graphs)
    (batch,) = read_batches(Codec(schema), tmp_path / "x.tfrecord", 9)
    check_side_by_side(batch, graphs, schema)


@each_schema
def test_absent_keys_mean_in_a_batch_as_by_themselves_and_wrong_ones_give_the_same_error(schema, tmp_path):
    codec, draw, path = Codec(schema), np.random.default_rng(3), tmp_path / "x.tfrecord"
    good, found = 0, set()
    for turn in range(200):
        records = [codec.encode(graph) for graph in random_graphs(schema, 6, seed=turn)]
        made = Example.FromString(records[4])
        have = made.features.feature
        key = sorted(have)[draw.integers(len(have))]
        numbers = have[key].int64_list.value
        how = draw.integers(4)
        if how == 0:
            del have[key]
        elif how == 1 and numbers:
            numbers[draw.integers(len(numbers))] = draw.choice([-1, 0, 1, 5, 2**40, 2**62])
        elif how == 2:
            numbers.append(0)
        elif numbers:
            numbers.pop()
        records[4] = made.SerializeToString(deterministic=True)
        write_records(path, records)
        try:
            graphs = list(codec.read(path))
        except TFGNNError as error:
            batches = read_batches(codec, path, 3)
            next(batches)
            with pytest.raises(TFGNNError) as raised:
                next(batches)
            assert raised.value.args == error.args
            found.add(how)
            continue
        good += 1
        first, second = read_batches(codec, path, 3)
        check_side_by_side(first, graphs[:3], schema)
        check_side_by_side(second, graphs[3:], schema)
    assert good > 10 and len(found) >= 2
