"""The commands of docs/tfgnn-training.md and the programs in docs/examples/tfgnn run unchanged."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples" / "tfgnn"


def test_the_example_of_the_formats_runs(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(sys, "argv", ["formats.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "formats.py"))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("[[b'temporal', b'graphs'], []]")]) == 10
    assert lines[-1] == "[b'p1'] [b'p0'] [0.5]"
    assert len(list(tmp_path.glob("graphs.tfrecord-*-of-00003"))) == 3


def test_a_source_and_a_sink_of_ones_own_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sqlite_source.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "sqlite_source.py"))
    # The two latest of ann's before each time: bob and cid, then cid and dee.
    assert capsys.readouterr().out.splitlines() == ["ann [30, 41, 25]", "ann:1 [30, 25, 37]"]
    assert (tmp_path / "follows.csv").read_text().splitlines()[:2] == ["#source,#target,#time", "ann,bob,10"]


def test_raw_tables_become_samples_and_a_model_of_pyg(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMD_CONFIG", "")
    runpy.run_path(str(EXAMPLES / "raw_tables.py"))
    block, = re.findall(r"```sh\n(.*?)```", (DOCS / "tfgnn-training.md").read_text(), re.S)
    for line in block.replace("\\\n", "").splitlines():
        program, *words = shlex.split(line.partition(" > ")[0])
        done = CliRunner().invoke(app, words)
        assert program == "streamd" and done.exit_code == 0, (line, done.output)
        if " > " in line:
            Path(line.partition(" > ")[2]).write_text(done.stdout)
    runpy.run_path(str(EXAMPLES / "link_model.py"))
    learned, ranked, mrr = re.fullmatch(r"(\d+) samples learned, (\d+) ranked: MRR ([\d.]+)", capsys.readouterr().out.splitlines()[-1]).groups()
    assert (int(learned), int(ranked)) == (900, 300)
    # A user clicks half of the items: who knows which has one of ten before him, .29, and chance is .18.
    assert float(mrr) > 0.24
