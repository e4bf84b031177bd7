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
        self._lost = 0

    def write(self, text: str) -> None:
        """Write and flush a text, or count it as lost."""
        try:
            if self._lost:
                self._stream.write(f"{self._lost} log lines could not be written\n")
                self._stream.flush()
                self._lost = 0
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # A line may come in pieces: its end counts.
            self._lost += text.endswith("\n")

    def flush(self) -> None:
        """Do nothing: each write flushes."""


def configure_logs(level: str, fmt: str, role: str) -> None:
    """Set up logging of this process.

    Args: level: least level that is logged; fmt: console or json; role: the field of each line.
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
            _named(role),
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


def _named(role: str) -> structlog.typing.Processor:
    """A processor that adds the field `role`."""

    def add(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        fields["role"] = role
        return fields

    return add


def _keep(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A processor that changes nothing."""
    return fields
