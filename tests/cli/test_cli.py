import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app, main
from streamd.errors import SettingsError, StreamdError
from streamd.events import Schema
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from tests.builders import stream, write_log


def run(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    return subprocess.run([sys.executable, "-m", "streamd", *args], capture_output=True, text=True, env=clean | env, check=False)


@pytest.mark.parametrize(("args", "env", "says"), [
    (("run",), {"STREAMD_SERVER__PORTS": "1"}, "did you mean STREAMD_SERVER__PORT"),
    (("config", "-c", "/no/such.yaml"), {}, "cannot be read"), (("run", "--role", "cook"), {}, "no role 'cook'"),
    (("run", "--name", "serve-2"), {}, "--role serve"), (("run", "--role", "train", "--name", "x"), {}, "takes no --name"),
    (("run", "--role", "serve", "--name", "Serve 2"), {}, "not a valid name of a server"),
    (("run", "--role", "serve", "--name", "ingest"), {}, "another part's name"),
    (("demo", "--stream", "nope"), {}, "no demo stream"), (("demo", "--speed", "fast"), {}, "--speed"),
    (("verify", "--data-dir", "/no/such"), {}, "holds no log"), (("models", "list", "--data-dir", "/no/such"), {}, "no models"),
    (("produce", "/no/file.csv"), {}, "not a file"),
    (("run", "--role", "ingest"), {"STREAMD_KAFKA__CLIENT": '{"sasl_mecanism": "PLAIN"}'}, "sasl_mechanism")])
def test_what_is_wrong_is_one_line_and_status_2(tmp_path, args, env, says):
    done = run(*args, STREAMD_DATA_DIR=str(tmp_path), **env)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr + done.stdout


def test_config_prints_every_setting_and_its_source():
    done = run("config", STREAMD_TRAINING__EPOCHS="4", COLUMNS="200")
    line = next(x for x in done.stdout.splitlines() if "training.epochs" in x)
    assert line.split() == ["training.epochs", "4", "environment"]


def test_verify_says_what_is_damaged(tmp_path):
    write_log(tmp_path, *stream(120), Schema(2, 0, 0), tails=(40,))
    assert CliRunner().invoke(app, ["verify", "--data-dir", str(tmp_path)]).exit_code == 0
    path = tmp_path / "nodes.keys"
    raw = bytearray(path.read_bytes())
    raw[20] ^= 1
    path.write_bytes(raw)
    done = CliRunner().invoke(app, ["verify", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1 and "nodes.keys" in done.output


def test_the_supervisor_imports_neither_torch_nor_numba():
    code = "import sys, streamd.cli.main, streamd.daemon.run_role; print([m for m in ('torch', 'numba', 'cupy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_ingest_imports_neither_torch_nor_numba():
    code = ("import sys, streamd.ingest.loop, streamd.ingest.kafka.consumer, streamd.eventlog.writer; "
            "print([m for m in ('torch', 'numba', 'cupy') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "200"})


def tguf(*args):
    return invoke("tguf", *args)


def test_a_tguf_file_is_described_and_checked(tmp_path):
    golden = Path(__file__).parents[1] / "eventlog/golden/nodefeat_labels_splits.tguf"
    shown = tguf("inspect", str(golden)).output
    for text in ("num_edges", "val_start", "[70, 85)", "node_feat", "2 to 146", "label_target"):
        assert text in shown
    assert "100 edges, 12 labels checked (no journal" in tguf("verify", str(golden)).output
    write_log(tmp_path, *stream(120))
    segment = tmp_path / "edges/default/00000000000000000000.tguf"
    assert "checksums of its journal), 0 damaged" in tguf("verify", str(segment)).output
    raw = bytearray(segment.read_bytes())
    raw[4096 + 8 * 5] ^= 1
    segment.write_bytes(raw)
    result = tguf("verify", str(segment))
    assert result.exit_code == 1 and "edges [0, 97)" in result.output
    assert tguf("verify", str(tmp_path / "published")).exit_code != 0


def test_dead_letters_are_listed_and_counted_by_reason(tmp_path):
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    for i in range(5):
        letters.add(DeadLetter("rides", 1, i, 0, "late" if i % 2 else "bad_time", "why [it] is", 7, json.dumps({"n": i}).encode()))
    letters.flush()
    shown = invoke("deadletter", "list", "--data-dir", tmp_path).output
    assert "bad_time 3, late 2" in shown and shown.count("rides/1") == 5 and "why [it] is" in shown
    few = invoke("deadletter", "list", "--reason", "late", "--limit", 1, "--data-dir", tmp_path).output
    assert few.count("rides/1") == 1 and '{"n": 3}' in few
    assert "no dead letters" in invoke("deadletter", "list", "--data-dir", tmp_path / "none").output
    letters.add(DeadLetter("rides", 1, 9, 0, "late", "", 7, json.dumps({"text": "x" * 200}).encode()))
    letters.flush()
    long = invoke("deadletter", "list", "--reason", "late", "--limit", 1, "--data-dir", tmp_path).output
    assert '{"text": "' + "x" * 69 + "…" in long, "a cut value has a mark"


def test_dead_letters_are_shown_without_what_a_terminal_would_obey(tmp_path, monkeypatch):
    monkeypatch.setattr("streamd.cli.main.out.width", 300)
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    evil = "\x1b[2J\r\n\x9b31m\u202e"
    letters.add(DeadLetter(evil, 1, 0, 0, evil, evil, 7, evil.encode() + b"\xff"))
    letters.flush()
    shown = invoke("deadletter", "list", "--data-dir", tmp_path).output
    assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(shown)
    assert shown.count("\\x1b[2J\\r\\n\\x9b31m\\u202e") == 5, "topic, reason, error, value, and reason counted"
    assert "\\xff" in shown


def test_an_error_that_quotes_a_file_is_shown_without_what_a_terminal_would_obey(tmp_path, monkeypatch, capsys):
    (tmp_path / "t.csv").write_text("\x1b[31mred,dst,time\n1,2,3\n")
    monkeypatch.setattr("sys.argv", ["streamd", "produce", str(tmp_path / "t.csv")])
    with pytest.raises(SystemExit, match="^2$"):
        main()
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\\x1b[31mred" in said


OPEN = {"STREAMD_SERVER__HOST": "0.0.0.0"}


def test_only_a_run_asks_for_keys(tmp_path):
    done = CliRunner().invoke(app, ["run", "--role", "serve", "--data-dir", str(tmp_path)], env=OPEN)
    assert isinstance(done.exception, SettingsError) and "server.api_keys is empty" in str(done.exception)
    shown = CliRunner().invoke(app, ["config"], env=OPEN)
    assert shown.exit_code == 0 and "`streamd run` refuses these settings: Other machines can reach server.host 0.0.0.0" in shown.stderr
    assert CliRunner().invoke(app, ["config"], env=OPEN | {"STREAMD_SERVER__API_KEYS": '["hush"]'}).stderr == ""
    for command in (["backup", f"file://{tmp_path}/store"], ["verify"], ["restore", f"file://{tmp_path}/store"]):
        done = CliRunner().invoke(app, [*command, "--data-dir", str(tmp_path / "data")], env=OPEN)
        assert isinstance(done.exception, StreamdError) and "api_keys" not in str(done.exception)
