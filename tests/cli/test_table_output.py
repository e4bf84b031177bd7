"""Tables are as wide as the terminal; in a file or a pipe each row is a line that can be searched and copied."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from streamd.cli import main
from streamd.cli.main import app
from streamd.cli.table_output import print_records, print_table
from streamd.number_texts import count_noun

HEAD = ("partition", "offset", "reason", "error", "value")
ROWS = [("shop.clicks/0", "100", "missing_field", "dst (object.sku) is missing", json.dumps({"user": user, "n": list(range(30))}))
        for user in (1, 2)]


def printed(terminal, width=80):
    out = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_records(out, HEAD, ROWS, num_long=2)
    return out.file.getvalue().splitlines()


@pytest.fixture(autouse=True)
def no_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_record_is_one_line_of_a_pipe():
    head, *lines = printed(terminal=False)
    assert head.split() == list(HEAD) and len(lines) == len(ROWS)
    assert [json.loads(line[line.index("{"):])["user"] for line in lines] == [1, 2]
    assert all(line == line.rstrip() for line in lines)


def test_in_a_narrow_terminal_long_cells_have_lines_of_their_own_and_are_whole():
    lines = printed(terminal=True)
    assert lines[0].split() == ["partition", "offset", "reason"]
    assert lines[1].split() == ["shop.clicks/0", "100", "missing_field"] and lines[2].strip() == "dst (object.sku) is missing"
    assert json.loads(lines[3]) == json.loads(ROWS[0][-1])


def test_a_wide_terminal_has_a_line_for_each_record():
    assert len(printed(terminal=True, width=400)) == 1 + len(ROWS)


def test_the_columns_of_a_pipe_may_be_set(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert printed(terminal=False) == printed(terminal=True)


def test_a_table_in_a_pipe_is_not_wrapped():
    table = Table("name", "value", box=None, caption="what it is")
    table.add_row("nightly weights, live state " * 5, "word " * 40)
    out = Console(file=io.StringIO(), width=40)
    print_table(out, table)
    head, row, caption = out.file.getvalue().splitlines()
    assert "nightly weights, live state " * 5 in row and row.endswith("word") and caption.strip() == "what it is"


def test_one_thing_is_not_counted_as_several():
    assert count_noun(1, "copy", "copies") == "1 copy" and count_noun(2, "copy", "copies") == "2 copies"
    assert [count_noun(number, "object") for number in (0, 1, 1200)] == ["0 objects", "1 object", "1,200 objects"]


def test_no_command_joins_a_count_and_a_plural_by_hand():
    nouns = "byte|commit|delete|edge|event|file|graph|key|label|letter|node|object|partition|record|row|sample|segment|setting|version|window"
    by_hand = re.compile(rf"\{{[^{{}}]+(?::,)?\}} (?:{nouns})s\b")
    texts = {path.name: path.read_text() for path in Path(main.__file__).parent.glob("*.py")}
    assert {name: found for name, text in texts.items() if (found := [m[0] for m in map(by_hand.search, text.splitlines()) if m])} == {}


def test_a_caption_wider_than_its_table_is_one_line_of_a_pipe():
    table = Table("a", box=None, title="its name", caption="a sentence on the figures of the table, " * 4)
    table.add_row("1")
    out = Console(file=io.StringIO(), width=80)
    print_table(out, table)
    assert out.file.getvalue().splitlines()[-1].strip() == table.caption.strip()


def test_sentences_of_commands_are_wrapped_in_a_terminal_only():
    reasons = [f"reason_number_{n}" for n in range(9)]
    program = ("from streamd.cli.options import err, out\n"
               f"for console in (out, err): console.print({', '.join(reasons)!r})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == done.stderr.splitlines() == [", ".join(reasons)]


def in_terminal(*args, columns=80):
    """What a command prints in a terminal of so many columns."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | {"COLUMNS": str(columns), "TERM": "dumb"}
    with subprocess.Popen([sys.executable, "-m", "streamd", *args], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:
            pass  # The other end is closed.
        process.wait()
    os.close(ours)
    return b"".join(parts).decode().replace("\r", "")


def test_descriptions_of_commands_break_where_the_terminal_ends():
    lines = [line.strip("│ \n") for line in in_terminal("--help").splitlines()]
    text = " ".join(lines)
    assert "the archive if other machines follow the log" in text
    start = next(i for i, line in enumerate(lines) if line.startswith("run "))
    assert len(lines[start].removeprefix("run").strip()) > 55 and len(lines[start + 1]) > 40, lines[start:start + 3]


def test_settings_are_shown_as_a_file_has_them(tmp_path):
    shown = CliRunner().invoke(app, ["config", "--data-dir", str(tmp_path)]).output
    values = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert '["events"]' in values["kafka.topics"] and "null" in values["kafka.client_file"] and "None" not in shown


def test_a_long_setting_pads_no_other_line_of_a_pipe():
    topics = json.dumps([f"topic-{number}" for number in range(50)])
    lines = CliRunner().invoke(app, ["config"], env={"STREAMD_KAFKA__TOPICS": topics, "COLUMNS": "80"}).output.splitlines()
    assert any(line.startswith(" kafka.topics  ") and line.endswith(f"  {topics}  environment") for line in lines)
    width = lines[0].index("value")
    # An empty value leaves the two blanks on both sides of it.
    assert all(re.fullmatch(r" \S+  +", line[:width]) and "   " not in line[width:] for line in lines)
