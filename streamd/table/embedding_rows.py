"""The table of node embeddings as of a version: by its weights, at the event at which its memory
ends."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamd.errors import StreamdError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.events import Int64
from streamd.gpu import make_graph
from streamd.graph.live import CATCH_UP_EDGES, LiveGraph, read_back
from streamd.registry.registry import Registry
from streamd.serving.loaded_version import LoadedVersion
from streamd.settings.loading import GpuSettings, GraphSettings
from streamd.table.arrow_columns import array_over, fixed_lists
from streamd.table.keys import NodeKeys

BATCH_NODES = 4_096
"""Nodes that are embedded together: their neighborhoods take some tens of megabytes."""


class EmbeddingRows:
    """The embeddings of a version, of one node set or of all, by node id. Owner: one reader.

    Nodes that were deleted since are left out, and those without an event before the version's end.
    A batch has the same numbers whenever it is computed, unless events before were deleted or
    dropped since.
    """

    def __init__(
        self, log: LogReader, keys: NodeKeys, registry: Registry, name: str, node_set: int | None
    ) -> None:
        """log: of the snapshot. name: of the version. node_set: number of the set; None for all.
        Raises: VersionError if the version cannot be loaded, or is newer than the log; StreamdError
        if its model has no embeddings."""
        self._log = log
        self._keys = keys
        self._number = node_set
        self._names = pa.array(log.state.schema.node_set_names)
        manifest = registry.manifest(name)
        if manifest.edge > log.num_edges:
            raise VersionError(
                f"Version {name} has learned events up to {manifest.edge:,}, which came after this "
                "snapshot.",
                "open the log again.",
            )
        self._version = LoadedVersion.restored(registry.load(name), log.state.schema)
        self._model = manifest.model_settings()
        if not self._version.has_embeddings:
            raise StreamdError(
                f"Version {name} of model {self._model.name} has no embeddings.",
                "use a model with graph layers, such as tgn, or log.facts.",
            )
        self.schema = pa.schema(
            [
                ("node", pa.int64()),
                ("node_set", pa.string()),
                ("key", pa.string()),
                ("key_int", pa.int64()),
                ("version", pa.string()),
                ("embedding", pa.list_(pa.float32(), self._version.model.widths[0])),
            ]
        )
        self.default_columns: Sequence[str] = self.schema.names

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name)."""
        cut = self._version.memory.edge
        live = self._graph_until(cut)
        log = self._log
        num_nodes = self._num_nodes(cut)
        for first in range(0, num_nodes, BATCH_NODES):
            nodes = np.arange(first, min(first + BATCH_NODES, num_nodes))
            kept = ~log.deletions.is_gone(nodes)
            if self._number is not None:
                kept &= log.node_sets_of(nodes) == self._number
            if kept.any():
                nodes = nodes[kept]
                yield len(nodes), {name: self._make(name, nodes, live) for name in columns}

    def _graph_until(self, cut: int) -> LiveGraph:
        """The graph and the node features as of an event, without deleted events."""
        log = self._log
        graph = make_graph(
            GraphSettings(),
            GpuSettings(),
            "cpu",
            log.first_edge,
            self._model.direction,
            read_back(log),
        )
        live = LiveGraph(log, graph, self._model)
        # The facts are not needed, so only the graph takes the events.
        for end in range(log.first_edge, cut, CATCH_UP_EDGES):
            live.insert(end)
        live.insert(cut)
        live.take_features(cut)
        return live

    def _num_nodes(self, cut: int) -> int:
        """One past the highest id of a node in the events before a cut: later nodes have higher
        ids."""
        most = 0
        for first in range(self._log.first_edge, cut, CATCH_UP_EDGES):
            src, dst, _ = self._log.edges(first, min(first + CATCH_UP_EDGES, cut))
            most = max(most, 1 + int(src.max()), 1 + int(dst.max()))
        return most

    def _make(self, name: str, nodes: Int64, live: LiveGraph) -> Any:
        """A column of some nodes."""
        if name == "node":
            return array_over(nodes, pa.int64())
        if name == "node_set":
            return self._names.take(pa.array(self._log.node_sets_of(nodes)))
        if name == "version":
            return pa.repeat(self._version.manifest.name, len(nodes))
        # The vectors, and the keys.
        if name == "embedding":
            return fixed_lists(self._version.embeddings_of(nodes, live))
        return self._keys.texts(nodes) if name == "key" else self._keys.integers(nodes)
