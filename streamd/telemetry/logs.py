"""Logs by structlog: the event's name first, values as fields; to stderr, so that stdout stays for
answers."""

import logging
import sys
from typing import TextIO, cast

import structlog


class _Output:
    """A stream on which a line that cannot be written, as on a full disk, harms nobody: the next
    one that can be says how many were lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> None:
        try:
            if self._lost:
                self._stream.write(f"{self._lost} log lines could not be written\n")
                self._stream.flush()
                self._lost = 0
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._lost += text.endswith("\n")

    def flush(self) -> None:
        """Each write flushes."""


def configure_logs(level: str, fmt: str, role: str) -> None:
    """Set up logging of this process. fmt: console or json."""
    number = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
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
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Output(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s"
    )


def _named(role: str) -> structlog.typing.Processor:
    def add(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        fields["role"] = role
        return fields

    return add


def _keep(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return fields
