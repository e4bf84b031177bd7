"""A terminal that has only ASCII, as of cron, Jenkins and `LANG=C`, gets escapes for other characters, in answers, tables and errors."""

import json
import os
import subprocess
import sys

import pytest

from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters

ASCII = {"PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
NO_UTF8 = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "200"}
ROWS = [{"user_id": "日本", "page": "ü1", "time": 1764000000000 + i} for i in range(30)]


def run(*args, env=ASCII):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STREAMD_", "LC_", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"))}
    done = subprocess.run([sys.executable, "-m", "streamd", *map(str, args)], capture_output=True, env=clean | env, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode("utf-8", "replace")
    return done.returncode, done.stdout.decode("ascii"), done.stderr.decode("ascii")


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.ndjson"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("env", [ASCII, NO_UTF8])
def test_what_sources_print_is_escaped(tmp_path, rows, env):
    """`guess` prints settings, which go into a file, and `check` prints a table of records under them."""
    status, settings, _ = run("sources", "guess", rows, env=env)
    assert status == 0 and "user_id" in settings
    config = tmp_path / "settings.yaml"
    config.write_text(settings, encoding="utf-8")
    status, told, _ = run("sources", "check", rows, "--config", config, env=env)
    assert status == 0 and r"\u65e5\u672c" in told and r"\xfc1" in told and "30 edge" in told


def test_dead_letters_and_errors_are_escaped(tmp_path):
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    letters.add(DeadLetter("straße", 0, 7, -1, "missing_field", "日 is missing", 7, json.dumps({"src": "日本"}, ensure_ascii=False).encode()))
    letters.flush()
    status, told, _ = run("deadletter", "list", "--data-dir", tmp_path)
    assert status == 0 and "missing_field" in told and r"stra\xdfe" in told
    status, _, error = run("verify", "--data-dir", tmp_path / "größe")
    assert status == 2 and r"gr\xf6\xdfe holds no log" in error
    assert run("sources", "--help")[0] == 0


def test_settings_are_read_as_utf8_whatever_the_locale(tmp_path, rows):
    config = tmp_path / "settings.yaml"
    config.write_text("sources:\n  - topic: t\n    fields: {src: user_id, dst: page, time: time}\n    where: {page: [ü1]}\n", encoding="utf-8")
    status, told, _ = run("sources", "check", rows, "--config", config, env=NO_UTF8)
    assert status == 0 and "30 edge" in told
