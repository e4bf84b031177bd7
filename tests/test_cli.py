import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli import app
from streamd.errors import SettingsError
from streamd.events import Schema
from streamd.ingest.produce import Columns, read_events
from tests.builders import stream, write_log


def run(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    return subprocess.run([sys.executable, "-m", "streamd", *args], capture_output=True, text=True, env=clean | env, check=False)


@pytest.mark.parametrize(("args", "env", "says"), [
    (("run",), {"STREAMD_SERVER__PORTS": "1"}, "did you mean STREAMD_SERVER__PORT"),
    (("config", "-c", "/no/such.yaml"), {}, "cannot be read"), (("run", "--role", "cook"), {}, "no role 'cook'"),
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
    code = "import sys, streamd.cli, streamd.daemon; print([m for m in ('torch', 'numba', 'cupy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_ingest_imports_neither_torch_nor_numba():
    code = ("import sys, streamd.ingest.loop, streamd.ingest.consumer, streamd.segments.log; "
            "print([m for m in ('torch', 'numba', 'cupy') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_files_become_events(tmp_path):
    table = "a,b,when,x,y\n1,p:2,5,0.5,1\nu:3,7,6,2,3\n"
    (tmp_path / "t.csv").write_text(table)
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write(table)
    columns = Columns("a", "b", "when", ("x", "y"))
    want = [(b"1", b'{"src":1,"dst":"p:2","time":5,"features":[0.5,1.0]}', 5),
            (b"u:3", b'{"src":"u:3","dst":7,"time":6,"features":[2.0,3.0]}', 6)]
    for name in ("t.csv", "t.csv.gz"):
        assert [(e.key, e.value, e.time) for e in read_events(tmp_path / name, columns)] == want
    (tmp_path / "t.ndjson").write_text('{"src": "a", "dst": "b", "time": 3}\n\n{"type": "node", "id": 5}\n')
    assert [(e.key, e.time) for e in read_events(tmp_path / "t.ndjson", columns)] == [(b"a", 3), (b"5", None)]
    import pyarrow
    import pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 4], "b": ["p:2", "q"], "when": [5, 6], "x": [0.5, 1], "y": [1.0, 2]}),
                                tmp_path / "t.parquet")
    assert [e.key for e in read_events(tmp_path / "t.parquet", columns)] == [b"1", b"4"]


@pytest.mark.parametrize(("name", "content", "says"), [
    ("x.csv", "src,dst\n1,2\n", "no column 'time'"), ("x.csv", "src,dst,time\n1,2,soon\n", "row 1"),
    ("x.ndjson", "{}\n{oops\n", "line 2"), ("x.ndjson", "[1]\n", "line 1"), ("x.txt", "", "neither")])
def test_files_that_are_no_events_are_named(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=says):
        list(read_events(tmp_path / name, Columns()))


def tguf(*args):
    return CliRunner().invoke(app, ["tguf", *args], env={"COLUMNS": "200"})


def test_a_tguf_file_is_described_and_checked(tmp_path):
    golden = Path(__file__).parent / "segments/golden/nodefeat_labels_splits.tguf"
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
