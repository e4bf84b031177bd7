"""Public data sets in the forms in which they are published, each a few rows in that form, by one command."""

import gzip
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.eventlog.reader import LogReader

ARTIST = "f1b1cf71-bd35-4e99-8624-24a6e15f133a"


def gdelt(width, actor1, actor2, added, tone="1.5"):
    """A row of GDELT's events with these actors. width: 57 and 58 are those of 1.0, 61 are those of 2.0."""
    cells = ["1", "20150218", "201502", "2015", "2015.1", actor1, *[""] * 9, actor2, *[""] * 9, "1", "040", "040", "04", "1", "2.8", "10", "1", "10", tone]
    return "\t".join(cells + [""] * (width - len(cells) - (1 if width == 57 else 2)) + [added] + (["http://x"] if width > 57 else []))


def run(tmp_path, name, text, config="", file="data.txt"):
    """The log's edges, as (source, destination, microseconds), the log, and the output of the command."""
    (tmp_path / file).write_text(text)
    (tmp_path / "s.yaml").write_text(config)
    done = CliRunner().invoke(app, ["import", str(tmp_path / file), "--as", name, "--config", str(tmp_path / "s.yaml"), "--data-dir", str(tmp_path / "log")])
    assert done.exit_code == 0, done.exception
    log = LogReader.open(tmp_path / "log")
    edges = [(log.keys[a], log.keys[b], int(t)) for a, b, t in zip(*log.edges(0, log.num_edges), strict=True)]
    return edges, log, done.output


S = 1_000_000
JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,0.0,0,-0.1,0.5,0\n1,0,36.0,0,0.2,0.5,1\n0,1,77.5,1,0.3,0.25,1\n"


@pytest.mark.parametrize(("name", "text", "want"), [
    ("jodie", JODIE, [("user:0", "item:0", 0), ("user:1", "item:0", 36 * S), ("user:0", "item:1", 77_500_000)]),
    ("snap", "# Directed graph\n# FromNodeId\tToNodeId\n0\t4\n5\t0\n", [(0, 4, 0), (5, 0, 0)]),
    ("snap", "9 8 1217567877\n1 1 1217606247\n13 1 1217567999\n", [(9, 8, 1217567877 * S), (13, 1, 1217567999 * S), (1, 1, 1217606247 * S)]),
    ("snap", "id_1,id_2\n3,4\n", [(3, 4, 0)]),
    ("snap-signed", "6,2,4,1289241911.72836\n6,5,-2,1289241941.53378\n", [(6, 2, 1289241911728360), (6, 5, 1289241941533780)]),
    ("snap-signed", "# FromNodeId\tToNodeId\tSign\n0\t1\t-1\n", [(0, 1, 0)]),
    ("lastfm", f"user_000639\t2009-04-08T01:57:47Z\t{ARTIST}\tThe \"Dogs D'Amour\tM\tFall\nuser_000639\t2009-04-08T01:53:56Z\t\tNone Such\t\tX\n",
     [("user_000639", "None Such", 1239155636 * S), ("user_000639", ARTIST, 1239155867 * S)]),
    ("movielens", "1::1193::5::978300760\n1::661::3::978302109\n2::661::3::978302100\n",
     [("user:1", "movie:1193", 978300760 * S), ("user:2", "movie:661", 978302100 * S), ("user:1", "movie:661", 978302109 * S)]),
    ("movielens", "196\t242\t3\t881250949\n", [("user:196", "movie:242", 881250949 * S)]),
    ("movielens", "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n1,29,3.0,1260759100\n", [("user:1", "movie:29", 1260759100 * S), ("user:1", "movie:31", 1260759144 * S)]),
    ("gdelt", gdelt(61, "USA", "FRA", "20150218230000") + "\n" + gdelt(61, "USA", "", "20150218230000") + "\n", [("USA", "FRA", 1424300400 * S)]),
    ("gdelt", gdelt(58, "USA", "FRA", "20150218") + "\n", [("USA", "FRA", 1424217600 * S)]),
    ("gdelt", gdelt(57, "USA", "FRA", "20150218") + "\n", [("USA", "FRA", 1424217600 * S)]),
    ("tgb", "time,src,dst,weight\n1648811421,0x27,0x84,800.0\n", [("0x27", "0x84", 1648811421 * S)]),
    ("tgb", "day,src,dst,callsign,typecode\n2019-01-01,EHAM,KJFK,X,Y\n", [("EHAM", "KJFK", 1546300800 * S)]),
    ("tgb", "year,nation,trading nation,weight\n1986,France,Italy,0.5\n1987,Italy,France,0.25\n", [("France", "Italy", 504921600 * S), ("Italy", "France", 536457600 * S)]),
    ("tgb", "timestamp,head,tail,relation_type\n1546300800,3,4,1\n", [(3, 4, 1546300800 * S)]),
    ("snap", "223789 213163 1341100972 MT\n", [(223789, 213163, 1341100972 * S)]),
    ("tgb", "ts,src,dst,subreddit,num_words,score\n1134028003,a,b,r,7,2\n", [("a", "b", 1134028003 * S)]),
    ("tgb", JODIE, [("user:0", "item:0", 0), ("user:1", "item:0", 36 * S), ("user:0", "item:1", 77_500_000)]),
])
def test_a_data_set_is_read_as_it_is_published(tmp_path, name, text, want):
    assert run(tmp_path, name, text)[0] == want


@pytest.mark.parametrize(("name", "text", "features", "want"), [
    ("jodie", JODIE, "features: {vector: 3}", [[-0.1, 0.5, 0], [0.2, 0.5, 1], [0.3, 0.25, 1]]),
    ("snap-signed", "6,2,4,1289241911.72836\n6,5,-2,1289241941.5\n", "RATING: number", [[4], [-2]]),
    ("movielens", "1::1193::5::978300760\n", "rating: number", [[5]]),
    ("gdelt", gdelt(61, "USA", "FRA", "20150218230000", "-2.5"), "AvgTone: number, EventRootCode: {categories: ['04', '05']}", [[-2.5, 1, 0, 0]]),
    ("tgb", "time,src,dst,weight\n1648811421,0x27,0x84,800.0\n", "weight: number", [[800]]),
])
def test_declared_features_are_columns_of_the_same_names(tmp_path, name, text, features, want):
    _, log, output = run(tmp_path, name, text, f"graph: {{edge_sets: {{default: {{features: {{{features}}}}}}}}}")
    np.testing.assert_allclose(log.features_of(np.arange(len(want))), want, rtol=1e-6)
    assert "not taken" not in output


def test_what_is_left_out_is_named(tmp_path):
    output = run(tmp_path, "gdelt", gdelt(58, "USA", "", "20150218") + "\n" + gdelt(58, "USA", "FRA", "20150218"))[2]
    assert "left out: 1 row without Actor1Code or Actor2Code" in output
    assert "not taken as features: GoldsteinScale, NumMentions, AvgTone; declare features of these names" in output


WRONG_FORMS = {
    "snap": ["6,2,4,1289241911\n", "1 2 3 4\n", "0\t2010-10-19T23:55:27Z\t30.2\t-97.7\t22847\n", "Id:   0\nASIN: 077\n", "SOURCE_SUBREDDIT\tTARGET_SUBREDDIT\tPOST_ID\tTIMESTAMP\n", "a b\n", "7\n", "0\t1\t-1\n", "0 4 1\n"],
    "snap-signed": ["SRC:Steel1943\nTGT:BDD\n", "0 4\n", "a,b,c,d,e\n"],
    "jodie": [",u,i,ts,label,idx\n0,1,8228,0.0,0.0,1\n", "time,src,dst,weight\n5,1,2,3\n", "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n", "0,0,0.0\n"],
    "movielens": ["movieId,title,genres\n1,Toy Story (1995),Adventure\n", "1::F::1::10::48067\n", "movieId,userId,rating,timestamp\n1,2,3,4\n", "1,2,3\n"],
    "tgb": ["src,dst,time,w\n1,2,1546300800,1\n", "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n", "time,src\n1,2\n"],
    "gdelt": ["\t".join("x" * 27) + "\n"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG_FORMS.items() for text in texts])
def test_a_file_of_another_data_set_is_refused_and_not_read_by_the_wrong_columns(tmp_path, name, text):
    (tmp_path / "data.txt").write_text(text)
    done = CliRunner().invoke(app, ["import", str(tmp_path / "data.txt"), "--as", name, "--data-dir", str(tmp_path / "log")])
    assert re.search(rf"data.txt: .*{'columns' if name == 'gdelt' else 'the first line has'}.*name its columns instead of --as", str(done.exception)), done.exception
    assert not (tmp_path / "log").exists()


def test_users_and_items_of_two_node_sets_need_no_prefix(tmp_path):
    config = "graph: {node_sets: {user: {}, item: {}}, edge_sets: {edits: {source: user, target: item}}}"
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(JODIE.encode()))
    (tmp_path / "s.yaml").write_text(config)
    done = CliRunner().invoke(app, ["import", str(tmp_path / "t.csv.gz"), "--as", "jodie", "--config", str(tmp_path / "s.yaml"), "--data-dir", str(tmp_path / "log")])
    assert done.exit_code == 0, done.exception
    assert [key if type(key) is int else key[1] for key in LogReader.open(tmp_path / "log").keys] == [0, 0, 1, 1]


@pytest.mark.parametrize(("args", "text", "says"), [
    (("--as", "jody"), JODIE, "--as jody is unknown; there are jodie.*did you mean 'jodie'"), (("--as", "gdelt"), "a,b\n", "1 columns: events of GDELT have 58"),
    (("--as", "jodie", "--src", "x"), JODIE, "--as jodie defines columns, cells and keys"), (("--as", "jodie", "--edge-set", "x"), JODIE, "There is no edge set x"),
    (("--as", "jodie"), "user_id,item_id,timestamp,state_label\na,b,soon,0\n", r"data.txt row 1: time \(timestamp\) is text, not a number of s")])
def test_a_file_in_another_form_is_named_before_it_goes_in(tmp_path, args, text, says):
    (tmp_path / "data.txt").write_text(text)
    done = CliRunner().invoke(app, ["import", str(tmp_path / "data.txt"), *args, "--data-dir", str(tmp_path / "log")])
    assert re.search(says, str(done.exception)), done.exception
