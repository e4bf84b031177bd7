import io
import json
import logging
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from streamd.telemetry.logs import LibraryLines, LossyOutput


class Disk(io.StringIO):
    full = False

    def flush(self):
        if self.full:
            self.truncate(0)
            self.seek(0)
            raise OSError(28, "No space left on device")


def test_a_log_on_a_full_disk_stops_nobody_and_says_later_what_was_lost():
    disk = Disk()
    output = LossyOutput(disk)
    print("one", file=output, flush=True)
    disk.full = True
    for text in ("two", "three"):
        print(text, file=output, flush=True)
    disk.full = False
    print("four", file=output, flush=True)
    assert "2 log lines could not be written" in disk.getvalue() and disk.getvalue().endswith("four\n")


def test_several_errors_are_one_line_of_the_console():
    program = """
import structlog
from streamd.telemetry.logs import configure_logs
configure_logs("info", "console", "ingest")
structlog.get_logger().error("refused", error="There are 2 errors:\\n- a is wrong.\\n- b is wrong.")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "error='There are 2 errors: a is wrong.; b is wrong.'" in done.stderr and done.stderr.count("\n") == 1


PROGRAM = """
import logging
from streamd.telemetry.logs import configure_logs
configure_logs({level!r}, "json", "ingest")
kafka = logging.getLogger("kafka.net.manager")
for i in range(50):
    kafka.warning("Bootstrap %s not ready; waiting %.2f secs", f"bootstrap-{{i}}", 0.5)
    kafka.info("Initializing connection")
kafka.error(f"Connection failed: {{i}}")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("other").exception("100 % %s wrong", *())
"""


@pytest.mark.parametrize(("level", "events"), [("info", ["library_warning", "library_error", "library_error"]),
                                               ("debug", ["library_warning", "library_error", "library_error"]),
                                               ("error", ["library_error", "library_error"])])
def test_lines_of_libraries_are_lines_of_ours_of_our_level_and_one_for_each_place(level, events):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(level=level)], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == events and done.stdout == "" and {line["role"] for line in lines} == {"ingest"}
    assert lines[-2]["library"] == "kafka.net.manager" and lines[-2]["message"] == "Connection failed: 49"
    assert lines[-1]["message"] == "100 % %s wrong" and "ZeroDivisionError" in lines[-1]["exception"]
    assert level == "error" or lines[0]["message"] == "Bootstrap bootstrap-0 not ready; waiting 0.50 secs"


def test_a_place_is_written_again_after_a_minute_with_the_number_left_out():
    now = [0.0]
    handler = LibraryLines(logging.INFO, lambda: now[0])
    record = logging.LogRecord("kafka", logging.WARNING, "manager.py", 7, "not ready: %s", ("b1",), None)
    elsewhere = logging.LogRecord("kafka", logging.WARNING, "manager.py", 8, "closed", (), None)
    with capture_logs() as lines:
        for at in (0, 1, 59, 60, 61, 121):
            now[0] = at
            handler.handle(record)
            handler.handle(elsewhere) if at == 1 else None
    assert [(line["message"], line.get("left_out")) for line in lines] == [("not ready: b1", None), ("closed", None), ("not ready: b1", 2),
                                                                          ("not ready: b1", 1)]
    assert handler.level == logging.WARNING
