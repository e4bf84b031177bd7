"""The interface of the event log that ingest and imports write to."""

from collections.abc import Sequence
from typing import Protocol

from streamd.events import EventBatch, Gap, Int64, Key, Progress, Schema


class Log(Protocol):
    """The methods of the log that ingest uses; `streamd.eventlog.writer.LogWriter` implements
    them."""

    keys: dict[Key, int]

    @property
    def schema(self) -> Schema: ...

    @property
    def watermark(self) -> int: ...

    @property
    def num_edges(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def newest_us(self) -> int | None: ...

    def count_edges(
        self, src_X: Int64, dst_X: Int64, time_X: Int64, set_X: Int64 | int = 0
    ) -> Int64: ...

    @property
    def progress(self) -> Progress: ...

    def remaining_rows(self) -> int: ...

    def commit(
        self, batch: EventBatch, progress: Progress, watermark: int, gaps: Sequence[Gap] = ()
    ) -> None: ...

    @property
    def seq(self) -> int: ...

    @property
    def is_waiting(self) -> bool: ...

    @property
    def expects_lines(self) -> bool: ...

    def show_acknowledged(self) -> int: ...
