"""The tables of windows, versions and moves of the champion, which are few rows each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamd.registry.manifest import Manifest
from streamd.registry.registry import FOLDER, Registry, read_manifests
from streamd.registry.version_lines import VersionLine
from streamd.settings.loading import ModelSettings
from streamd.settings.paths import Paths
from streamd.table.arrow_columns import TIME
from streamd.windows.history import HistoryReader, WindowRecord

NUMBERS = pa.map_(pa.string(), pa.float64())
SCORES = pa.map_(pa.string(), NUMBERS)
"""Model or rule -> measure -> value."""
WINDOWS = pa.schema(
    [
        ("window_start", TIME),
        ("window_end", TIME),
        ("first_event", pa.int64()),
        ("end_event", pa.int64()),
        ("num_scored", pa.int64()),
        ("num_known", pa.int64()),
        ("num_late", pa.int64()),
        ("version", pa.string()),
        ("scored_by", pa.string()),
        ("promoted", pa.bool_()),
        ("reason", pa.string()),
        ("scores", SCORES),
        ("set_scores", pa.map_(pa.string(), SCORES)),
        ("loss", pa.float64()),
        ("seconds", NUMBERS),
        ("finished_at", TIME),
        ("surprise", pa.float64()),
        ("mean_negatives", pa.float64()),
    ]
)
VERSIONS = pa.schema(
    [
        ("version", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("first_event", pa.int64()),
        ("end_event", pa.int64()),
        ("commit", pa.int64()),
        ("parent", pa.string()),
        ("scores", SCORES),
        ("loss", pa.float64()),
        ("is_servable", pa.bool_()),
        ("release", pa.string()),
        ("created", TIME),
    ]
)
MOVES = pa.schema(
    [
        ("time", TIME),
        ("action", pa.string()),
        ("champion", pa.string()),
        ("shadow", pa.string()),
        ("who", pa.string()),
        ("why", pa.string()),
    ]
)


class Records:
    """A table of few rows, which are read once. Owner: a snapshot."""

    def __init__(self, schema: Any, read: Callable[[], list[dict[str, Any]]]) -> None:
        self.schema = schema
        self.default_columns: Sequence[str] = schema.names
        self._read = read
        self._rows: Any = None

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name) of all rows."""
        if self._rows is None:
            self._rows = pa.RecordBatch.from_pylist(self._read(), schema=self.schema)
        if self._rows.num_rows:
            yield self._rows.num_rows, {name: self._rows.column(name) for name in columns}


def windows(data_dir: Path, commit: int) -> Records:
    """The finished windows as of a commit, oldest first."""

    def read() -> list[dict[str, Any]]:
        return [_window_row(one) for one in HistoryReader(data_dir, commit).refresh()]

    return Records(WINDOWS, read)


def versions(data_dir: Path, commit: int) -> Records:
    """The versions of the model that were kept as of a commit, oldest first. One that was removed
    since has only the columns of its line in the log."""

    def read() -> list[dict[str, Any]]:
        registry = registry_of(data_dir)
        if registry is None:
            return []
        rows = {one.name: _version_row(registry, one) for one in read_manifests(registry)}
        lines = registry.version_lines
        # Without lines in the log, as in one of several machines, they are those of now.
        if not lines.is_in_use or not lines.versions():
            return list(rows.values())
        made = lines.made_until(commit)
        return [rows.get(line.name) or _removed_row(line) for line in made]

    return Records(VERSIONS, read)


def moves(data_dir: Path, commit: int) -> Records:
    """The moves of the champion as of a commit, oldest first."""

    def read() -> list[dict[str, Any]]:
        registry = registry_of(data_dir)
        if registry is None:
            return []
        return [
            {
                "time": round(one.time * 1e6),
                "action": one.action,
                "champion": one.champion,
                "shadow": one.shadow,
                "who": one.who,
                "why": one.why,
            }
            for one in registry.journal.moves(commit)
        ]

    return Records(MOVES, read)


def newest_model(data_dir: Path) -> ModelSettings:
    """The model settings of the newest version; the defaults if there is none."""
    registry = registry_of(data_dir)
    manifests = [] if registry is None else read_manifests(registry)
    return manifests[-1].model_settings() if manifests else ModelSettings()


def registry_of(data_dir: Path) -> Registry | None:
    """The registry of a data directory; None if it has none yet."""
    # A registry creates its folder, which a reader must not do.
    if not (data_dir / FOLDER).is_dir():
        return None
    return Registry(Paths(data_dir, data_dir, "serve"), keep=1)


def _window_row(one: WindowRecord) -> dict[str, Any]:
    return {
        "window_start": one.start_us,
        "window_end": one.end_us,
        "first_event": one.first_edge,
        "end_event": one.end_edge,
        "num_scored": one.num_scored,
        "num_known": one.num_known,
        "num_late": one.num_late,
        "version": one.version,
        "scored_by": one.scored_by,
        "promoted": one.promoted,
        "reason": one.reason,
        "scores": _pairs(one.scores),
        "set_scores": [
            (name, _pairs(part.scores)) for name, part in (one.edge_sets | one.node_sets).items()
        ],
        "loss": one.loss,
        "seconds": list(one.seconds.items()),
        "finished_at": round(one.finished_at * 1e6),
        "surprise": one.surprise,
        "mean_negatives": one.mean_negatives,
    }


def _version_row(registry: Registry, one: Manifest) -> dict[str, Any]:
    return {
        "version": one.name,
        "window_start": one.window_start_us,
        "window_end": one.window_end_us,
        "first_event": one.first_edge,
        "end_event": one.edge,
        "commit": one.seq,
        "parent": one.parent,
        "scores": _pairs(one.scores),
        "loss": one.loss,
        "is_servable": registry.is_servable(one),
        "release": one.code,
        "created": round(one.created * 1e6),
    }


def _removed_row(line: VersionLine) -> dict[str, Any]:
    return {
        "version": line.name,
        "end_event": line.edge,
        "parent": line.parent,
        "is_servable": False,
        "created": round(line.created * 1e6),
    }


def _pairs(scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, list[tuple[str, float]]]]:
    """Scores as Arrow's pairs of maps."""
    return [(model, list(measures.items())) for model, measures in scores.items()]
