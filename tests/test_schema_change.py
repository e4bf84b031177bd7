"""Which declarations extend a log's, and where old columns lie in rows of the new ones."""

import numpy as np
import pytest

from streamd.errors import SchemaError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writable import check_writable
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, empty_batch
from streamd.schema import Schema
from streamd.schema_change import check_extends, widened_edges, widened_nodes
from streamd.settings.loading import schema_of
from tests.builders import settings, stream, write_log

VIEWS = {"source": "user", "target": "item", "features": {"seconds": "number"}}
BUYS = {"source": "user", "target": "item", "features": {"how": {"categories": ["card", "cash"]}}}
NODES = {"user": {"features": {"age": "number"}}, "item": {}}


def of(path, nodes=NODES, **edges):
    return schema_of(settings(path, graph__node_sets=nodes, graph__edge_sets=edges))


def features(one, **more):
    return one | {"features": one["features"] | more}


@pytest.mark.parametrize(("nodes", "edges", "says"), [
    (NODES, {"views": VIEWS, "buys": BUYS}, ""),
    (NODES, {"views": VIEWS, "buys": BUYS, "rates": VIEWS}, ""),
    (NODES | {"shop": {}}, {"views": features(VIEWS, clicks="number"), "buys": features(BUYS, to={"hash": 4})}, ""),
    (NODES, {"views": VIEWS | {"features": {"seconds": {"type": "number", "missing": 0}}}, "buys": BUYS}, ""),
    (NODES, {"buys": BUYS, "views": VIEWS}, "the edge sets views, buys, the settings say buys, views"),
    (NODES, {"views": VIEWS}, "the settings say views"),
    ({"item": {}, "user": NODES["user"]}, {"views": VIEWS, "buys": BUYS}, "the node sets user, item"),
    (NODES, {"views": VIEWS | {"target": "user"}, "buys": BUYS}, "edge_sets.views joins user and item in the log, user and user in"),
    (NODES, {"views": VIEWS | {"features": {"clicks": "number", "seconds": "number"}}, "buys": BUYS}, "edge_sets.views has the features seconds"),
    (NODES, {"views": VIEWS | {"features": {}}, "buys": BUYS}, "0 numbers in the settings"),
    (NODES, {"views": VIEWS, "buys": BUYS | {"features": {"how": {"categories": ["card", "cash", "cheque"]}}}}, "edge_sets.buys has the features"),
    ({"user": {"features": {"age": "bool"}}, "item": {}}, {"views": VIEWS, "buys": BUYS}, "node_sets.user has the features age"),
])
def test_further_sets_and_features_extend_a_log_and_everything_else_is_refused_by_name(tmp_path, nodes, edges, says):
    old, new = of(tmp_path, views=VIEWS, buys=BUYS), of(tmp_path, nodes, **edges)
    if not says:
        check_extends(old, new)
        return
    with pytest.raises(SchemaError, match=says):
        check_extends(old, new)


@pytest.mark.parametrize(("old", "new", "says"), [
    ({"graph__edge_sets": {"default": {"features": {"a": "number"}}}}, {"graph__edge_sets": {"default": {"features": {"a": "number", "b": "number"}}}}, ""),
    ({}, {"graph__edge_sets": {"default": {"features": {"a": "number"}}}}, ""),
    ({}, {"graph__edge_sets": {"default": {}, "buys": {}}}, ""),
    ({"stream__edge_feature_dim": 2}, {"graph__edge_sets": {"default": {"features": {"a": {"vector": 2}}}}}, ""),
    ({"stream__edge_feature_dim": 2}, {"graph__edge_sets": {"default": {"features": {"a": {"vector": 3}}}}}, "has 2 numbers in the log"),
    ({"stream__edge_feature_dim": 2}, {"stream__edge_feature_dim": 3}, "stream.edge_feature_dim"),
    ({}, {"stream__node_feature_dim": 3}, "stream.node_feature_dim"),
    ({}, {"stream__label_dim": 1}, "stream.label_dim 0, the settings say 1"),
    ({}, {"graph__edge_sets": {"views": {}}}, "the edge sets default, the settings say views"),
])
def test_a_log_without_declared_sets_is_extended_too(tmp_path, old, new, says):
    before, after = (schema_of(settings(tmp_path, **values)) for values in (old, new))
    write_log(tmp_path, *stream(50), before)
    if says:
        with pytest.raises(SchemaError, match=says):
            LogWriter(tmp_path, after)
        return
    ids = np.arange(50)
    rows = LogReader.open(tmp_path).features_of(ids)
    LogWriter(tmp_path, after).close()
    log = LogReader.open(tmp_path)
    assert log.state.schema == after and log.num_edges == 50
    np.testing.assert_array_equal(log.features_of(ids), widened_edges(rows, before, after))
    again = LogWriter(tmp_path, after)
    assert again.state.schema == after and again.schema == after
    again.close()


DECLARED = {"graph__edge_sets": {"default": {"features": {"a": {"vector": 3}}}}, "graph__node_sets": {"default": {"features": {"age": "number"}}}}


@pytest.mark.parametrize(("old", "new"), [
    ({}, {"stream__edge_feature_dim": 3, "stream__node_feature_dim": 2, "stream__label_dim": 1}),
    ({"stream__edge_feature_dim": 3, "stream__node_feature_dim": 2, "stream__label_dim": 1}, {}),
    ({"stream__edge_feature_dim": 2}, DECLARED), (DECLARED, {"stream__node_feature_dim": 2}),
    ({"graph__edge_sets": {"views": {}, "buys": {}}}, {"graph__edge_sets": {"buys": {}}}),
])
@pytest.mark.parametrize("has_commit", [False, True])
def test_a_log_in_which_no_event_ever_was_takes_any_schema(tmp_path, old, new, has_commit):
    """Records that were refused moved the positions: that makes no rows."""
    before, after = (schema_of(settings(tmp_path, **values)) for values in (old, new))
    writer = LogWriter(tmp_path, before)
    if has_commit:
        writer.commit(empty_batch(before), Progress("c", {}, {"t": {0: Position(3)}}), 0)
    writer.close()
    waiting = LogReader.open(tmp_path)

    # The next start has the settings corrected; the process of a reader starts again.
    assert check_writable(tmp_path, after, 1000).is_blank
    write_log(tmp_path, *stream(50), after)
    log = LogReader.open(tmp_path)
    assert log.state.schema == after and log.num_edges == 50 and log.features_of(np.arange(50)).shape == (50, after.edge_feature_dim)
    if waiting is not None:
        waiting.refresh()
        assert waiting.superseded and waiting.num_edges == 0

    # With a row the schema is fixed.
    with pytest.raises(SchemaError):
        LogWriter(tmp_path, before)


def test_rows_of_one_set_become_rows_of_the_first_of_several(tmp_path):
    old, new = Schema(1, 1), of(tmp_path, {"default": {"features": {"age": "number"}}, "item": {}}, default={
        "source": "default", "target": "default", "features": {"a": "number", "b": "number"}}, buys={"source": "default", "target": "item"})
    rows = np.array([[5.0], [0.0]], np.float32)
    assert widened_edges(rows, old, new).tolist() == [[1, 0, 5, 0], [1, 0, 0, 0]]
    assert widened_nodes(rows, old, new).tolist() == [[1, 0, 5], [1, 0, 0]]
    assert widened_edges(rows, old, old).tolist() == rows.tolist()
