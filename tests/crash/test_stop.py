"""How the server of a real process ends, and how it speaks."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from streamd.cli.health import ask_health
from streamd.events import Schema
from tests.builders import HOUR, stream, write_log
from tests.crash.daemons import wait

NOWHERE = "127.0.0.1:1"


def status_of(daemon, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.settings.server.port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture
def logged(tmp_path):
    write_log(tmp_path / "data", *stream(200), Schema(0, 0, 0), watermark=100 * HOUR)
    return tmp_path


def test_told_to_stop_the_server_is_unready_but_answers_until_it_has_drained(daemon_on, logged):
    daemon = daemon_on(NOWHERE, "t", server__drain_seconds=8).start("serve")
    wait(daemon.is_ready, "it answers")
    begun = time.monotonic()
    daemon.process.terminate()
    wait(lambda: status_of(daemon, "/readyz")[0] == 503, "it is unready", 7)
    assert "stopping" in status_of(daemon, "/readyz")[1]["why"]
    assert status_of(daemon, "/v1/models")[0] == status_of(daemon, "/livez")[0] == 200
    assert daemon.process.wait(40) == 0 and time.monotonic() - begun >= 8


def test_a_second_signal_skips_the_drain_of_role_and_daemon(daemon_on, logged):
    for role in (("serve",), ()):
        daemon = daemon_on(NOWHERE, "t", server__drain_seconds=60).start(*role)
        wait(daemon.is_ready, "it answers")
        daemon.process.send_signal(signal.SIGINT)
        wait(lambda d=daemon: status_of(d, "/readyz")[0] == 503, "it drains", 40)
        begun = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(50) == 0 and time.monotonic() - begun < 50


def test_a_role_whose_supervisor_was_killed_while_it_started_does_not_stay(logged):
    gone = subprocess.Popen(["true"])
    gone.wait()
    env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | {"STREAMD_DATA_DIR": str(logged / "data"), "SUPERVISED_BY": str(gone.pid)}
    done = subprocess.run([sys.executable, "-m", "streamd", "run", "--role", "train"], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "supervisor_gone" in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_with_a_certificate_the_server_speaks_https_only(daemon_on, logged):
    cert, key = logged / "cert.pem", logged / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    daemon = daemon_on(NOWHERE, "t", server__tls_cert_file=cert, server__tls_key_file=key).start("serve")
    trusted, port = ssl.create_default_context(cafile=str(cert)), daemon.settings.server.port

    def ready():
        try:
            with urllib.request.urlopen(f"https://localhost:{port}/readyz", context=trusted, timeout=5) as answer:
                return json.load(answer)["ready"]
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    wait(ready, "it answers over TLS")
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://localhost:{port}/readyz", timeout=5)
    assert ask_health(daemon.settings, "serve", "/readyz")[0]
    assert daemon.stop() == 0
