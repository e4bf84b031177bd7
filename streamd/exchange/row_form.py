"""The form of a file's rows from which streamd's own events are made, for errors about them."""

from dataclasses import dataclass

from streamd.decode.block import Rejected
from streamd.decode.notices import named
from streamd.exchange.event_files import NDJSON, EventFile
from streamd.exchange.tables import Columns
from streamd.settings.loading import Settings

REMEDIES = {
    "late": "a log only grows forward in time: import into a new data_dir.",
    "node_limit": "raise ingest.max_nodes.",
    "feature_width": "declare as many in the settings (stream.edge_feature_dim, "
    "stream.node_feature_dim, stream.label_dim), or correct the row.",
}
"""Operator action by reason, for reasons that need another action than to correct the row."""


def remedy_of(reason: str) -> str:
    """The operator action for a row that is refused for this reason."""
    return REMEDIES.get(reason, "correct it in the file.")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowForm:
    """How the rows of a file are read as events. time_unit: of numeric times. file: None if the
    events come from no file of rows. columns: of the file that make an event."""

    time_unit: str
    file: EventFile | None = None
    columns: Columns = Columns()

    @classmethod
    def of(cls, settings: Settings, file: EventFile | None, columns: Columns) -> "RowForm":
        """The form of rows under these settings and options."""
        unit = columns.time_unit or settings.stream.time_unit
        return cls(time_unit=unit, file=file, columns=columns)

    def names(self) -> tuple[str, ...]:
        """The names in a row, if events are made from some of its columns; () if they are the
        row."""
        if self.file is None or (self.file.kind == NDJSON and not self.columns.has_names):
            return ()
        return self.file.columns

    def action(self, rejected: Rejected) -> str:
        """The operator action for a refused event of a row."""
        names, columns = self.names(), self.columns
        # Without --features a column `features` has them.
        if rejected.reason == "feature_width" and not columns.features and "features" not in names:
            used = (columns.src, columns.dst, columns.time, columns.edge_set_column)
            unused = [name for name in names if name and name not in used]
            if unused:
                return (
                    f"name the columns of features with --features; not read now: {named(unused)}."
                )
        return remedy_of(rejected.reason)
