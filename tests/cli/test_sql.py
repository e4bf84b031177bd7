"""`streamd sql`: its formats, its statements from an argument or stdin, and its shell."""

import csv
import io
import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from streamd.cli import sql_command, sql_shell
from streamd.cli.main import app
from streamd.cli.sql_shell import SqlShell, history_path, store_history
from streamd.errors import LeaseError, QueryError
from tests.builders import SETS, sets_stream, stream, write_log, write_sets_log

QUERY = "select src_key, time, features from events_buys order by event limit 2"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    write_sets_log(path, *sets_stream())
    return path


def sql(log, *args, **more):
    return CliRunner().invoke(app, ["sql", *args, "--data-dir", str(log)], catch_exceptions=False, **more)


def test_a_table_for_people(log):
    lines = sql(log, QUERY).stdout.splitlines()
    assert lines[0].split() == ["src_key", "time", "features"]
    assert lines[1].split() == ["17", "1970-01-01T00:00:12Z", "[0.0,", "1.0]"] and len(lines) == 3


def test_csv_json_and_parquet_hold_the_same_rows(log):
    written = {name: sql(log, QUERY, "--format", name).stdout_bytes for name in ("csv", "json", "parquet")}
    rows = [json.loads(line) for line in written["json"].splitlines()]
    assert rows[0] == {"src_key": "17", "time": "1970-01-01T00:00:12Z", "features": [0, 1]} and len(rows) == 2
    cells = list(csv.DictReader(io.StringIO(written["csv"].decode())))
    assert [row | {"features": json.loads(row["features"])} for row in cells] == rows
    table = pq.read_table(io.BytesIO(written["parquet"]))
    assert table["features"].to_pylist() == [row["features"] for row in rows] and str(table.schema.field("time").type) == "timestamp[us, tz=UTC]"


def test_values_that_json_lacks_and_names_that_come_twice(log):
    (line,) = sql(log, "select 'nan'::float a, 1.50::decimal(4,2) a, map{'k': null} m, 'x'::blob b, date '2026-01-02' d, {'s': true} s", "--format", "json"
                  ).stdout.splitlines()
    assert json.loads(line) == {"a": None, "a_2": 1.5, "m": {"k": None}, "b": "78", "d": "2026-01-02", "s": {"s": True}}


def test_long_cells_of_a_table_are_cut_and_those_of_other_forms_are_whole(log):
    query = "select repeat('ab', 1500) a, range(900) b, 'short' c"
    done = sql(log, query, env={"COLUMNS": "400"})
    cells = done.stdout.splitlines()[1].split()
    assert cells[0] == "ab" * 49 + "a…" and max(map(len, done.stdout.splitlines())) < 230 and "short" in done.stdout
    assert "2 cells cut at 100 characters: --format json has all" in done.stderr
    for form in ("json", "csv"):
        other = sql(log, query, "--format", form)
        assert "ab" * 1500 in other.stdout and "…" not in other.stdout and "cut" not in other.stderr
    assert "cut" not in sql(log, "select repeat('a', 100) a").stderr


def test_a_long_table_is_cut_and_the_rest_is_counted(log):
    done = sql(log, "select range from range(2500)")
    assert len(done.stdout.splitlines()) == 1 + sql_command.SHOWN_ROWS and "and 1,500 more rows" in done.stderr


def test_a_statement_comes_from_stdin_too(log):
    assert sql(log, "--format", "csv", input="select count(*) as n\nfrom events").stdout == "n\n900\n"


def test_a_refused_statement_is_one_line_and_status_2(log):
    done = subprocess.run([sys.executable, "-m", "streamd", "sql", "copy events to 'x'", "--data-dir", str(log)], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("streamd: COPY is not allowed: SQL only reads here. Operator action: give a SELECT")


class Lines:
    """A person who types lines: a text, or an error that the terminal raises."""

    def __init__(self, *lines):
        self.lines, self.prompts = list(lines), []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        line = self.lines.pop(0) if self.lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line


class Session:
    views = {"events": ["event", "src"], "nodes": ["node"]}


def test_the_shell_answers_statements_of_several_lines_until_it_is_left(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    answered = []

    def answer(text):
        answered.append(text)
        if "wrong" in text:
            raise QueryError("it is wrong.")

    lines = Lines("select 1", "from x;", "", "select wrong;", "select half", KeyboardInterrupt(), ".tables", ".columns nodes", ".help", "select 2;", ".quit",
                  "select 3;")
    SqlShell(Session(), answer, lines).run()
    assert answered == ["select 1\nfrom x;", "select wrong;", "select 2;"]
    assert lines.prompts[:2] == [sql_shell.PROMPT, sql_shell.MORE] and lines.prompts[-1] == sql_shell.PROMPT
    printed = capsys.readouterr()
    assert "events\nnodes\nnode\n" in printed.out and ".columns VIEW" in printed.out and "it is wrong." in printed.err


def test_a_lease_that_has_run_out_ends_the_shell():
    def answer(text):
        raise LeaseError("over")

    with pytest.raises(LeaseError):
        SqlShell(Session(), answer, Lines("select 1;", "select 2;")).run()


def test_tab_completes_words_views_and_columns():
    shell = SqlShell(Session(), lambda text: None)

    def all_of(text):
        return [word for n in range(99) if (word := shell.complete(text, n)) is not None]

    assert all_of("ev") == ["event", "events"] and all_of("SEL") == ["SELECT"] and all_of(".t") == [".tables"] and all_of("zz") == []


def test_the_history_of_a_shell_is_there_in_the_next_one(monkeypatch, tmp_path):
    import readline
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    readline.clear_history()
    readline.add_history("select 41;")
    store_history()
    assert history_path() == tmp_path / "streamd" / "sql_history" and history_path().stat().st_mode & 0o77 == 0
    readline.clear_history()
    SqlShell(Session(), lambda text: None, Lines()).run()
    assert readline.get_history_item(1) == "select 41;"
    readline.clear_history()


def test_sets_are_views(log):
    assert sql(log, "show tables", "--format", "csv").stdout.split()[1:4] == ["events", *(f"events_{s}" for s in sorted(SETS.edge_set_names)[:2])]


def test_a_key_that_is_compared_with_a_node_id_gets_the_column_of_keys(tmp_path):
    write_log(tmp_path, *stream(50), key_of=lambda n: n + 1 if n < 30 else f"user:{n}")
    for statement, named in (("select * from events where src = 'user:8'", "src_key = 'user:8'"), ("from nodes where node in ('user:8', 'x')", "key = 'user:8'"),
                             ("from events e where e.dst <> 'a'", "dst_key = 'a'")):
        with pytest.raises(QueryError, match=f"is the log's number of a node: compare .*{named}"):
            sql(tmp_path, statement)
    # Node 7 has the key 8, and node 8 another.
    done = sql(tmp_path, "select count(*) from events where src = 8 and dst in ('8')")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [f"{end} = 8 is the log's number of a node. The node with the key 8 has the number 7" for end in ("src", "dst")]
    for statement in ("select count(*) from events where src_key = '8'", "select count(*) from events where src = 999", "select 'src = 8'"):
        assert not sql(tmp_path, statement).stderr
    with pytest.raises(QueryError, match="correct the statement"):
        sql(tmp_path, "select cast('a' as bigint)")
