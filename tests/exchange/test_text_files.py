"""CSV and JSON in the many ways in which programs write them: what is read, and how what is not is named."""

import bz2
import gzip
import lzma
import re
import zipfile

import pytest
import zstandard
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.eventlog.reader import LogReader
from streamd.exchange.event_files import EventFile
from streamd.exchange.sourced import read_rows

ROWS = "src,dst,time\na,b,5\nc,d,6\n"
LINES = '{"src": "a", "dst": "b", "time": 5}\n{"src": "c", "dst": "d", "time": 6}\n'


def run(*args):
    done = CliRunner().invoke(app, [str(a) for a in args])
    return (done.output + (str(done.exception) if done.exception else "")).replace("\n", " ")


def imported(tmp_path, name, content, *args):
    """What the import of a file says, and the keys of its log."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    said = run("import", tmp_path / name, *args, "--data-dir", tmp_path / "log")
    log = LogReader.open(tmp_path / "log")
    return said, list(log.keys) if log is not None else None


def keys_of(log):
    return LogReader.open(log).keys


@pytest.mark.parametrize(("text", "args", "keys"), [
    ("sep=,\nsrc,dst,time\na,b,5\n", (), ["a", "b"]), ("sep=;\r\nsrc;dst;time\r\na;b;5\r\n", (), ["a", "b"]), ("src; dst; time\na; b; 5\n", ("--delimiter", ";", "--strip"), ["a", "b"]),
    ("a::b::5\n", ("--delimiter", "::", "--no-header", "--src", 1, "--dst", 2, "--time", 3), ["a", "b"]), ("a  b\t5\n", ("--delimiter", "blanks", "--no-header", "--src", 1, "--dst", 2, "--time", 3), ["a", "b"]),
    ("# one\nsrc,dst,time\n# two\na,b,5\n", ("--comment", "#"), ["a", "b"]), ('src\tdst\ttime\n"a\tb\t5\n', ("--delimiter", "tab", "--quoting", "none"), ['"a', "b"]),
    ("src,dst,time\na,b,7\nc,b,5\n", ("--sort",), ["c", "b", "a"]), ("src,dst,time\n02134,10001,5\n10001,7,6\n", ("--keys", "text"), ["02134", "10001", "7"]),
])
def test_csv_in_another_form_is_described_by_options(tmp_path, text, args, keys):
    (tmp_path / "t.txt").write_text(text)
    path = (tmp_path / "t.txt").rename(tmp_path / ("t.csv" if "--delimiter" not in args else "t.data"))
    assert "1 event " in (said := run("import", path, *args, "--data-dir", tmp_path / "log")) or "2 events" in said, said
    assert keys_of(tmp_path / "log") == keys


@pytest.mark.parametrize(("text", "says"), [
    ("src, dst, time\na, b, 5\n", "no column 'dst', but ' dst' with blanks around it. Operator action: add --strip"),
    ("src,dst,time\n02134,s1,5\n10001,s1,6\n", "row 2: column 'src': it has '02134', which stays text, and 10001, which would be an integer. Operator action: add --keys text"),
    ("src,dst,time\na, b,5\na,b ,6\n", "column 'dst' has ' b', which is another key than 'b': --strip leaves blanks out"), ("src,dst,time\n7,b,5\nu7,b,6\n", "column 'src' has the integer 7 and the text 'u7'"),
    ("src,dst,time,features\na,b,5,oops\n", "column 'features': 'oops' is neither a list nor an object"), ("src,dst,time\na,b,6\na,b,5\n", "row 2 is earlier than the row before it. Operator action: sort the file by time, or add --sort")])
def test_what_is_odd_about_csv_is_named_with_what_to_do(tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    assert re.search(says, run("import", tmp_path / "t.csv", "--data-dir", tmp_path / "log").replace("\n", " "))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_tables_of_spreadsheets_are_read_as_they_are_saved(tmp_path, name, encoding, delimiter, newline):
    content = ROWS.replace(",", delimiter).replace("\n", newline).encode(encoding)
    said, keys = imported(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content)
    assert keys == ["a", "b", "c", "d"], said


def test_a_header_with_the_usual_delimiter_keeps_it(tmp_path):
    assert imported(tmp_path, "t.csv", "src,dst,time,a;b|c\na;x,b,5,7\n")[1] == ["a;x", "b"]
    said, keys = imported(tmp_path, "u.csv", "src,dst,time\na;x,b,5\n", "--delimiter", ";")
    assert "no column 'src'; there are src,dst,time" in said and "--no-header" in said


@pytest.mark.parametrize("name", ["t.json", "t.JSON.gz", "t.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_is_an_object_a_line_whatever_its_ending(tmp_path, name, encoding):
    content = LINES.encode(encoding)
    assert imported(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content)[1] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("content", "says"), [
    ("[" + LINES.strip().replace("\n", ",") + "]", "line 1: a list, not an object. Operator action: write one event a line, as jq -c '.[]' does"),
    ('{\n"src": 1}\n', "a JSON object of several lines, and is read as one value a line. Operator action: write an object a line: jq -c"), ("[\n{}\n]\n", "a JSON array of several lines"), ("{'src': 1}\n", "line 1: not JSON")])
def test_other_json_is_named_with_what_to_do(tmp_path, content, says):
    assert says in imported(tmp_path, "t.json", content)[0]


@pytest.mark.parametrize(("pack", "program"), [(bz2.compress, "bzcat"), (lzma.compress, "xzcat"), (zstandard.compress, "zstdcat"), (None, "unzip -p")])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.packed", "t.ndjson", "t.zip", "t.xlsx"])
def test_a_file_that_is_packed_in_another_way_names_the_program_that_unpacks_it(tmp_path, pack, program, name):
    if pack is None:
        with zipfile.ZipFile(tmp_path / "made", "w") as file:
            file.writestr("t.csv", ROWS)
    content = (tmp_path / "made").read_bytes() if pack is None else pack(ROWS.encode())
    said, keys = imported(tmp_path, name, content)
    assert f"{name}: it is packed, and not by gzip. Operator action: unpack it, or let a pipe do so, as <({program} {name})." in said and keys is None


@pytest.mark.parametrize(("row", "says"), [('"a" b,c,6', "',' expected after '\"'"), ('"a\\"x",c,6', "',' expected after '\"'"), ("a,c,6,7", "the next row has 4 cells, the header 3"), ('"a,c,6', "unexpected end of data")])
def test_a_row_that_cannot_be_split_names_the_options_that_may_split_it(tmp_path, row, says):
    said, _ = imported(tmp_path, "t.csv", f"{ROWS}{row}\n")
    assert f"after row 2: {says}. Operator action: correct the row; if a quotation mark is a character like any other, add --quoting none" in said


def test_a_long_text_in_a_column_that_nothing_reads_is_passed_over(tmp_path):
    assert imported(tmp_path, "t.csv", f"src,dst,time,body\na,b,5,{'x' * 1_000_000}\n")[1] == ["a", "b"]
    assert "field larger than field limit (16777216)" in imported(tmp_path, "u.csv", f'src,dst,time,body\na,b,6,"{"x" * (2**24 + 1)}\n')[0]


def test_an_empty_part_of_a_folder_has_no_rows(tmp_path):
    (tmp_path / "parts").mkdir()
    for at, text in enumerate((ROWS, "", ROWS.replace("5", "7").replace("6", "8"))):
        (tmp_path / "parts" / f"part-{at}.csv").write_text(text)
    assert "4 events" in run("import", tmp_path / "parts", "--data-dir", tmp_path / "log")


@pytest.mark.parametrize(("cells", "says"), [
    (("1.0", "2.0"), "column 'src' has '1.0', which is text: another key than 1; pandas writes integers so"), (("a", "-7.0"), "column 'src' has '-7.0'"),
    (("1.23457E+12", "1.2E+12"), "column 'src' has '1.23457E+12', which is text: a spreadsheet writes long ids so, and cuts their digits")])
def test_keys_that_another_program_wrote_as_numbers_are_named(tmp_path, cells, says):
    said, keys = imported(tmp_path, "t.csv", f"src,dst,time\n{cells[0]},b,5\n{cells[1]},b,6\n")
    assert said.count("which is text") == 1 and says in said and set(keys) == {*cells, "b"}
    (tmp_path / "s.yaml").write_text('sources: [{topic: t, time: ms, fields: {src: {path: src, prefix: "u:"}, dst: dst, time: time}}]')
    assert says in run("import", tmp_path / "t.csv", "--source", "t", "--config", tmp_path / "s.yaml", "--data-dir", tmp_path / "other")


@pytest.mark.parametrize("cell", ["1.5", "10.0.0.1", "v1.0", "1e5", "1E+1x", "C++E+1", ".0"])
def test_other_text_with_points_and_letters_is_a_key_as_it_is(tmp_path, cell):
    said, keys = imported(tmp_path, "t.csv", f"src,dst,time\n{cell},b,5\n")
    assert "which is text" not in said and keys == [cell, "b"]


@pytest.mark.parametrize("cell", ["1.0", "1E+3", "1.2E+12"])
def test_an_integer_in_two_forms_is_refused(tmp_path, cell):
    said, _ = imported(tmp_path, "t.csv", f"src,dst,time\n{cell},b,5\n1,b,6\n")
    assert f"row 2: column 'src': it has '{cell}', which stays text, and 1, which would be an integer" in said


NAMED_COLUMNS = ("--src", "a", "--dst", "b", "--time", "c", "--time-unit", "s")


@pytest.mark.parametrize(("head", "says"), [
    ("B007,r12,2026-09-01 08:02:21", "'2026-09-01 08:02:21'"), ("B007,r12,01/09/2026", "'01/09/2026'"), ("8,12,1790000000", "'8'"), ("u,i,1790000000", "'1790000000'"),
    ("u,i,t,4.5", "'4.5'"), ("u,i,t,-1", "'-1'"), ("u,i,t,1e3", "'1e3'"), ("0,1,2", ""), ("1,2,3", ""), ("u,i,t,0,1", ""), (",0", ""), ("2_3,q4,v1.5", ""), ("nan,inf,2026q1", "")])
def test_a_first_row_of_data_is_no_header(tmp_path, head, says):
    (tmp_path / "t.csv").write_text(f"{head}\n{','.join('x' * (head.count(',') + 1))}\n")
    if says:
        with pytest.raises(SettingsError, match=rf"t.csv: row 1 looks like data \({re.escape(says)} is no name\): is there a header\?.*--no-header"):
            read_rows(EventFile(tmp_path / "t.csv"))
    else:
        assert len(list(read_rows(EventFile(tmp_path / "t.csv")))) == 1


def test_a_table_without_a_header_says_so_in_the_place_of_a_column_and_columns_that_are_named_are_taken(tmp_path):
    (tmp_path / "t.csv").write_text("u1,i1,1700000000\nu2,i2,1700000001\n")
    assert "row 1 looks like data ('1700000000' is no name)" in run("import", tmp_path / "t.csv", "--data-dir", tmp_path / "log")
    (tmp_path / "t.csv").write_text("a,b,c,2026-01-01\nu1,i1,1700000000,4\n")
    assert "1 event " in run("import", tmp_path / "t.csv", *NAMED_COLUMNS, "--data-dir", tmp_path / "log")


@pytest.mark.parametrize(("text", "says"), [
    ('[{"src": 1, "dst": 2},\n{"src": 1, "dst": 3}]', "jq -c '.[]' t.json > t-lines.ndjson"), ("[\n{}\n]", "a JSON array of several lines"),
    ('{\n "src": 1\n}\n', "jq -c '.' t.json > t-lines.ndjson"), ('{"src":\n 1}\n', "a JSON object of several lines"), ('[{"src": 1}]\n[{"src": 2}]\n', ""), ("\n{}\n", "")])
def test_json_over_several_lines_has_a_remedy(tmp_path, text, says):
    (tmp_path / "t.json").write_text(text)
    if not says:
        assert len(list(EventFile(tmp_path / "t.json").rows(()))) == 2
        return
    with pytest.raises(SettingsError) as raised:
        list(EventFile(tmp_path / "t.json").rows(()))
    assert says in str(raised.value)
