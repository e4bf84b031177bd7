"""The tutorial's commands, run as they stand on the page: in a new directory, one after the other.

What makes settings and takes the table runs with all tests; `make slow` runs the page to its end, with backtest and roles.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from streamd.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def commands():
    """The blocks of the page that are to be run, in their order."""
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment():
    """The environment's programs first, and no settings of whoever runs the tests."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    return env | {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "COLUMNS": "100"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_tutorial_leads_from_a_table_to_a_log(tmp_path):
    """All commands but those that learn and answer; of those the options are looked up."""
    blocks = commands()
    taken = [line for block in blocks for line in block.splitlines() if line.startswith("streamd tguf import")]
    made = [block for block in blocks if re.search("^(python3|streamd init|streamd sources)", block, re.M)]
    assert len(made) == 3 and len(taken) == 1
    done = subprocess.run(["bash", "-euc", "\n".join([*made, *taken])], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "100 records: 100 edges; 0 skipped; 0 refused" in done.stdout and "# The prediction: for each customer, which product" in done.stdout
    assert "1,000 events appended" in done.stdout

    # The other commands are ones that there are.
    root = get_command(app)
    left = [line for block in blocks for line in block.splitlines() if "streamd " in line and block not in made and line not in taken]
    assert len(left) == 4
    for line in left:
        words = re.sub(r"\s*(>|\||&|;).*", "", line[line.index("streamd "):]).split()[1:]
        command = root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        command.make_parser(command.make_context("streamd", [], resilient_parsing=True)).parse_args(args=words)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="curl or bash is not installed")
def test_the_tutorial_leads_from_an_empty_directory_to_an_answer(tmp_path):
    script = "set -euo pipefail\n" + "\necho '#### next'\n".join(commands())
    assert script.count("streamd ") >= 6 and "localhost:8000" in script

    # Ports of its own.
    port = free_port()
    env = environment() | {"STREAMD_SERVER__PORT": str(port), "STREAMD_TELEMETRY__TRAIN_PORT": "0", "STREAMD_TELEMETRY__SERVE_PORT": "0"}
    running = subprocess.Popen(["bash", "-c", script.replace("localhost:8000", f"localhost:{port}")], cwd=tmp_path, env=env, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, errors = running.communicate(timeout=200)
    finally:
        # The two roles are of the same group, whatever became of the script.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    logs = "".join(p.read_text()[-1500:] for p in tmp_path.glob("*.log"))
    assert running.returncode == 0, f"{out[-3000:]}\n{errors[-3000:]}\n{logs}"

    # Settings that were checked, a verdict, and answers of a rule and of a version.
    parts = out.split("#### next")
    assert "100 records: 100 edges; 0 skipped; 0 refused" in out and "# The prediction: for each customer, which product" in out
    assert re.search(r"^Live \w+ .* MRR", out, re.M) and (tmp_path / "backtest.html").exists()
    recommended = json.loads(next(line for part in parts for line in part.splitlines() if line.startswith('{"src"')))
    assert recommended["known"] and len(recommended["scores"]) == 3 and recommended["scores"][0]["dst"].startswith("product:")
    scored = json.loads([line for line in parts[-1].splitlines() if line.startswith('{"src"')][-1])
    best, other = (s["score"] for s in scored["scores"])
    assert best > other, "product 21 is what customer 7 buys half of the time"
