"""Logs by structlog: the event's name first, values as fields; to stderr, so that stdout stays for answers."""

import logging
import sys

import structlog


def configure_logs(level: str, fmt: str, role: str) -> None:
    """Set up logging of this process. fmt: console or json."""
    number = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if fmt == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback))
    structlog.configure(
        processors=[
            _named(role),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info if fmt == "json" else _keep,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")


def _named(role: str) -> structlog.typing.Processor:
    def add(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        fields["role"] = role
        return fields

    return add


def _keep(_: object, __: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return fields
