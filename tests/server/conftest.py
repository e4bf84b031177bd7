import json
import sys

import pytest
import structlog
import torch

from streamd.telemetry.logs import configure_logs

# As in the processes of roles: several threads of torch in each of many tests would only wait for one another.
torch.set_num_threads(1)


@pytest.fixture
def logged(capsys):
    """Reads the log lines since it was last called. Loggers are not kept: they would hold on to this test's stderr."""
    configure_logs("info", "json", "serve")
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr), cache_logger_on_first_use=False)
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    structlog.reset_defaults()
