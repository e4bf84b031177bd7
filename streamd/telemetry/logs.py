"""Sets up the logs of a process: the event's name first, values as fields, to stderr, so that
stdout stays for answers."""

import logging
import sys
from typing import TextIO, cast

import structlog


class LossyOutput:
    """A stream that drops a line it cannot write, as on a full disk, and counts it.

    The next line that can be written is preceded by the number of lines lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""
        self._lost = 0

    def write(self, text: str) -> None:
        """Take a text; where it ends a line, write and flush that, or count it as lost."""
        # A line goes out in one piece: ranks write to the same file at the same moments.
        self._begun += text
        if not text.endswith("\n"):
            return
        line, self._begun = self._begun, ""
        try:
            if self._lost:
                self._stream.write(f"{self._lost} log lines could not be written\n")
                self._stream.flush()
                self._lost = 0
            self._stream.write(line)
            self._stream.flush()
        except OSError:
            self._lost += 1

    def flush(self) -> None:
        """Do nothing: each line is flushed."""


def configure_logs(level: str, fmt: str, role: str, rank: int | None = None) -> None:
    """Set up logging of this process.

    Args: level: least level that is logged; fmt: console or json; role, rank: fields of each line,
    rank where the process is one of several.
    """
    # JSON carries a traceback as a field, the console prints it below the line.
    number = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )

    # Our own lines go through structlog.
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _named({"role": role} if rank is None else {"role": role, "rank": rank}),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info if fmt == "json" else _keep,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LossyOutput(sys.stderr))),
        cache_logger_on_first_use=True,
    )

    # Libraries use the standard library's; their notices are noise beside ours.
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s"
    )


def _named(names: dict[str, str | int]) -> structlog.typing.Processor:
    """A processor that adds the fields that name the process."""

    def add(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        fields.update(names)
        return fields

    return add


def _keep(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A processor that changes nothing."""
    return fields
