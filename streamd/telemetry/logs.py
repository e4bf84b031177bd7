"""Configures a process' logs: the event's name first, values as fields, on stderr; stdout is for a
command's output."""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO, cast

import structlog

REPEAT_SECONDS = 60.0
"""Time between two log lines from the same line of a library's code: without a broker, kafka-python
logs eight lines a second."""


class LossyOutput:
    """A stream that drops lines it cannot write, for example on a full disk, and counts them.

    The next line that can be written comes after one with the number of lost lines.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""
        self._lost = 0

    def write(self, text: str) -> None:
        """Buffer a text; at the end of a line, write and flush the line, or count it as lost."""
        # A line is written in one call, since ranks write to the same file at the same time.
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


class LeastLevel:
    """A processor that drops lines below a level. The level may change at any time."""

    def __init__(self, level: str) -> None:
        self.level = level

    def __call__(
        self, _: object, method: str, fields: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        # The bound logger passes all levels, since its own level cannot change.
        if number_of(method) < number_of(self.level):
            raise structlog.DropEvent
        return fields


def number_of(level: str) -> int:
    """The number of a level in the standard library. level: a level, or the name of a logger's
    method."""
    return logging.ERROR if level == "exception" else int(getattr(logging, level.upper()))


def set_log_level(level: str) -> None:
    """Change the minimum level of this process' log lines."""
    # Lines of streamd, then lines of libraries.
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, LeastLevel):
            processor.level = level
    route_library_lines(number_of(level))


class LibraryLines(logging.Handler):
    """Writes warnings and errors of libraries, from the standard library's loggers, as log lines of
    streamd. Each line of their code is logged at most once every REPEAT_SECONDS.

    clock: seconds, for tests.
    """

    def __init__(self, level: int, clock: Callable[[], float] = time.monotonic) -> None:
        """level: minimum level; at least warning, since libraries' info lines are noise."""
        super().__init__(max(level, logging.WARNING))
        self._clock = clock
        self._written: dict[tuple[str, int], float] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it for the next one from the same line of code."""
        origin = record.pathname, record.lineno
        now = self._clock()
        if now - self._written.get(origin, -REPEAT_SECONDS) < REPEAT_SECONDS:
            self._left_out[origin] = self._left_out.get(origin, 0) + 1
            return

        # A library's format error must not fail the code that logs.
        self._written[origin] = now
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            message = str(record.msg)
        left_out = self._left_out.pop(origin, 0)
        is_error = record.levelno >= logging.ERROR
        structlog.get_logger().log(
            logging.ERROR if is_error else logging.WARNING,
            "library_error" if is_error else "library_warning",
            library=record.name,
            message=message,
            **({"left_out": left_out} if left_out else {}),
            **({"exc_info": record.exc_info} if record.exc_info else {}),
        )


def route_library_lines(level: int) -> None:
    """Route libraries' log lines of a level through `LibraryLines`, unless another program, such as
    a test, has installed handlers."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, LibraryLines)]
    if len(root.handlers) > len(ours):
        return
    for handler in ours:
        root.removeHandler(handler)
    root.addHandler(LibraryLines(level))


def configure_logs(level: str, fmt: str, role: str, rank: int | None = None) -> None:
    """Configure logging of this process.

    Args: level: minimum level; fmt: console or json; role, rank: fields of each line; rank is None
    for a process without ranks.
    """
    # In JSON a traceback is a field; the console prints it below the line.
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )

    # Lines of streamd go through structlog.
    structlog.configure(
        processors=[
            LeastLevel(level),
            structlog.contextvars.merge_contextvars,
            _named({"role": role} if rank is None else {"role": role, "rank": rank}),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info if fmt == "json" else _join_lines,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LossyOutput(sys.stderr))),
        cache_logger_on_first_use=True,
    )

    route_library_lines(number_of(level))
    # Commands silence this library; a process that logs does not.
    logging.getLogger("kafka").setLevel(logging.NOTSET)


def _named(names: dict[str, str | int]) -> structlog.typing.Processor:
    """A processor that adds the fields that identify the process."""

    def add(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        fields.update(names)
        return fields

    return add


def _join_lines(
    _: object, __: str, fields: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A processor that joins the lines of a field's text, for example of several errors in the
    settings: the console would show each end of a line as a backslash and an n."""
    for name, value in fields.items():
        if isinstance(value, str) and "\n" in value:
            first, *others = value.split("\n")
            listed = "; ".join(line.removeprefix("- ") for line in others)
            fields[name] = f"{first} {listed}" if first.endswith(":") else f"{first}; {listed}"
    return fields
