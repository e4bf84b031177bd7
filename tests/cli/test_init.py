"""`streamd init`: a settings file of a sample, by questions or by options."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.demo.standin import StandIn
from streamd.errors import KafkaError, SettingsError
from streamd.exchange.first_settings import SampledTopic, pasted_records, settings_text
from streamd.exchange.guess import guess
from streamd.processes import PYTHON
from streamd.settings.loading import load_settings

RECORD = {"user_id": 8, "item": {"id": "b41"}, "ts": "2026-11-22T10:00:00Z", "dwell": 3.5}
NOW_US = 1_790_000_000_000_000
AWAY = "127.0.0.1:1"


def invoke(tmp_path, *args, stdin=None):
    clean = {k: None for k in os.environ if k.startswith("STREAMD_")} | {"COLUMNS": "200"}
    return CliRunner().invoke(app, ["init", str(tmp_path / "settings.yaml"), *map(str, args)], input=stdin, env=clean)


def read(tmp_path):
    return load_settings(tmp_path / "settings.yaml", environ={})[0]


def comments_of(tmp_path):
    return " ".join((tmp_path / "settings.yaml").read_text().replace("#", "").split())


def rows(tmp_path, count=50):
    file = tmp_path / "shop.csv"
    file.write_text("who,what,at,price,rank\n" + "".join(f"u{n % 7},i{n % 5},{1790000000 + n},{n % 3}.5,{n % 4}\n" for n in range(count)))
    return file


def test_a_file_of_the_readers_own_becomes_settings_that_load_and_map_all_of_it(tmp_path):
    done = invoke(tmp_path, "--topic", "shop", "--sample", rows(tmp_path), "--src", "who", "--dst", "what")
    assert done.exit_code == 0, done.output
    assert "50 records: 50 edges; 0 skipped; 0 refused" in done.output and "streamd backtest" in done.output
    s = read(tmp_path)
    source, = s.sources
    assert s.kafka.topics == ("shop",) and (source.fields.src.path, source.fields.dst.path, source.time) == (("who",), ("what",), "s")
    assert set(source.fields.features) == {"price", "rank"} and s.stream.edge_feature_dim == 2
    text = (tmp_path / "settings.yaml").read_text()
    assert "# The prediction: for each who, which what comes next." in text and "# Check these:" in text
    check = CliRunner().invoke(app, ["sources", "check", str(tmp_path / "shop.csv"), "-c", str(tmp_path / "settings.yaml")], env={"STREAMD_CONFIG": None})
    assert check.exit_code == 0, check.output


def test_questions_offer_what_is_guessed_and_take_other_answers(tmp_path):
    answers = ["shop", AWAY, "what", "who", "none", "none"]
    done = invoke(tmp_path, "--ask", "--sample", rows(tmp_path), stdin="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    s = read(tmp_path)
    source, = s.sources
    assert (source.fields.src.path, source.fields.dst.path, source.time, source.fields.features) == (("what",), ("who",), "record", {})
    assert s.kafka.bootstrap_servers == AWAY


def test_a_wrong_answer_is_said_and_asked_again(tmp_path):
    answers = ["shop", AWAY, "nobody", "what", "at", "none", "who", "what", "price", "none", "who", "what", "at", "price"]
    done = invoke(tmp_path, "--ask", "--sample", rows(tmp_path), stdin="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "No record has a field nobody" in done.output and "price holds no times" in done.output
    assert set(read(tmp_path).sources[0].fields.features) == {"price"}


def test_a_record_is_pasted_where_the_broker_is_away(tmp_path):
    done = invoke(tmp_path, "--ask", "--broker", AWAY, "--topic", "clicks", stdin="\n".join([json.dumps(RECORD), "", "", "", "dwell"]) + "\n")
    assert done.exit_code == 0, done.output
    assert "No broker answers" in done.output and "1 record: 1 edge" in done.output
    assert read(tmp_path).sources[0].fields.dst.path == ("item.id",)


def test_a_topic_is_read_where_the_broker_is_there(tmp_path):
    from confluent_kafka import Producer

    broker = StandIn()
    broker.create_topic("clicks", 4)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(20):
        producer.produce("clicks", json.dumps(RECORD | {"user_id": n % 5, "dwell": n / 2}).encode())
    assert producer.flush(20) == 0
    os.environ["STREAMD_KAFKA__CLIENT"] = json.dumps(broker.client)
    try:
        done = CliRunner().invoke(app, ["init", str(tmp_path / "s.yaml"), "--topic", "clicks", "--broker", broker.bootstrap_servers])
        slip = CliRunner().invoke(app, ["sources", "guess", "click"], env={"STREAMD_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers})
    finally:
        del os.environ["STREAMD_KAFKA__CLIENT"]
        broker.close()
    assert done.exit_code == 0, done.output
    assert "20 records: 20 edges; 0 skipped; 0 refused" in done.output and "backtest" not in done.output
    assert str(slip.exception).startswith("There is no topic click, and no file of that name; there are clicks; did you mean 'clicks'? Operator action")


def test_a_broker_that_is_away_is_one_sentence_without_the_clients_lines(tmp_path):
    for command in ("guess", "check"):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | {"STREAMD_KAFKA__BOOTSTRAP_SERVERS": AWAY}
        done = subprocess.run([*PYTHON, "-m", "streamd", "sources", command, "events"], env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.startswith(f"streamd: No broker answers at {AWAY}: connection refused") and done.stderr.count("\n") == 1, done.stderr


def test_a_run_is_not_recommended_if_no_record_is_an_event(tmp_path):
    (tmp_path / "r.ndjson").write_text("".join(json.dumps({"user": "k" * 3000, "item": f"i{n}", "ts": 1790000000 + n}) + "\n" for n in range(30)))
    done = invoke(tmp_path, "--topic", "shop", "--sample", tmp_path / "r.ndjson", "--src", "user", "--dst", "item")
    assert done.exit_code == 1 and "30 records: no events; 0 skipped; 30 refused" in done.output
    assert "streamd run" not in done.output and "backtest" not in done.output
    assert f"by which no record of {tmp_path / 'r.ndjson'} is an event: 30 had the errors above" in done.output
    assert f"  streamd sources check {tmp_path / 'r.ndjson'}" in done.output and (tmp_path / "settings.yaml").exists()


def test_what_comes_from_outside_cannot_spoil_the_terminal(tmp_path):
    hostile = "\x1b[2J\x9b2J"
    lines = [RECORD | {hostile: 1, "kind": hostile}, RECORD, RECORD | {"item": {"id": {hostile: hostile}}}]
    (tmp_path / "r.ndjson").write_text("".join(json.dumps(r) + "\n" for r in lines))
    done = invoke(tmp_path, "--topic", "clicks", "--sample", tmp_path / "r.ndjson", "--ask", stdin="\n" * 9)
    assert "1 refused" in done.output
    assert not set("\x1b\x9b") & set(done.output + (tmp_path / "settings.yaml").read_text())


def test_without_questions_a_broker_that_is_away_is_an_error_and_writes_nothing(tmp_path):
    done = invoke(tmp_path, "--broker", AWAY, "--topic", "clicks", "--no-ask")
    assert isinstance(done.exception, KafkaError) and list(tmp_path.iterdir()) == []


def test_a_sample_comes_through_a_pipe(tmp_path):
    lines = "".join(json.dumps(RECORD | {"user_id": n}) + "\n" for n in range(3))
    done = invoke(tmp_path, "--topic", "clicks", "--sample", "-", stdin=lines)
    assert done.exit_code == 0 and "3 records: 3 edges" in done.output


TABLE = "user,item,at\n" + "".join(f"u{n % 7},i{n % 6},{1790000000 + n}\n" for n in range(20))


@pytest.mark.parametrize(("stdin", "says"), [(TABLE, "20 records: 20 edges"), (TABLE.replace(",", ";"), "20 records: 20 edges"), ("user,item,at\n", ""), ("", ""), (b"PAR1\x9a", "")])
def test_a_table_comes_through_a_pipe(tmp_path, stdin, says):
    done = invoke(tmp_path, "--topic", "shop", "--sample", "-", stdin=stdin)
    if not says:
        assert ("stdin is not UTF-8" if stdin == b"PAR1\x9a" else "stdin has no records") in str(done.exception) and list(tmp_path.iterdir()) == []
        return
    assert done.exit_code == 0 and says in done.output and "streamd backtest" not in done.output, done.output


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="has no /dev/fd")
def test_a_table_comes_from_another_command(tmp_path):
    # A shell's <(..) is such a path.
    read, write = os.pipe()
    os.write(write, TABLE.encode())
    os.close(write)
    try:
        done = invoke(tmp_path, "--topic", "shop", "--sample", f"/dev/fd/{read}")
    finally:
        os.close(read)
    assert done.exit_code == 0 and "20 records: 20 edges" in done.output and "streamd backtest" not in done.output, done.output


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_table_of_another_program_is_read(tmp_path, delimiter):
    rows = "".join(f"u{n % 7};i{n % 6};{1790000000 + n}\n" for n in range(20))
    (tmp_path / "shop.csv").write_text(f"who;what;at\n{rows}".replace(";", delimiter))
    done = invoke(tmp_path, "--topic", "shop", "--sample", tmp_path / "shop.csv", "--src", "who", "--dst", "what")
    assert done.exit_code == 0 and "20 records: 20 edges" in done.output, done.output


@pytest.mark.parametrize(("text", "says"), [
    ("u1,i1,2026-09-01 08:02:21\n", "row 1 looks like data ('2026-09-01 08:02:21' is no name): is there a header?"),
    ("who,what,at\nu1,Süd,1790000000\n", "save it as UTF-8")])
def test_a_table_that_cannot_be_read_is_refused_by_what_to_change(tmp_path, text, says):
    (tmp_path / "shop.csv").write_text(text, encoding="latin-1")
    done = invoke(tmp_path, "--topic", "shop", "--sample", tmp_path / "shop.csv")
    assert done.exit_code == 1 and says in str(done.exception) and not (tmp_path / "settings.yaml").exists()


def test_a_table_whose_times_cannot_be_read_is_said(tmp_path):
    (tmp_path / "shop.csv").write_text("who,what,at\n" + "".join(f"u{n % 7},i{n % 6},01.03.2026 07:{n}\n" for n in range(10, 40)))
    done = invoke(tmp_path, "--topic", "shop", "--sample", tmp_path / "shop.csv")
    comments = comments_of(tmp_path)
    assert "those of this command" in done.output and "has no time that could be read" in comments
    assert "Kafka timestamp is taken" not in comments, "one comment on the time is enough"
    assert "  streamd backtest" not in done.output, "a command that would be refused"
    looked = CliRunner().invoke(app, ["sources", "check", str(tmp_path / "shop.csv"), "--config", str(tmp_path / "settings.yaml")])
    assert "shop.csv have no timestamp" in looked.output and "refuse such rows" in " ".join(looked.output.split())


@pytest.mark.parametrize("made", ["file", "link"])
def test_nothing_is_ever_overwritten(tmp_path, made):
    target = tmp_path / "settings.yaml"
    target.write_text("mine") if made == "file" else target.symlink_to(tmp_path / "nowhere")
    done = invoke(tmp_path, "--topic", "shop", "--sample", rows(tmp_path))
    assert isinstance(done.exception, SettingsError) and "exists already" in str(done.exception)
    assert target.is_symlink() if made == "link" else target.read_text() == "mine"


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    """Another init in the same folder, between the check and the write."""
    import streamd.cli.init
    judge = streamd.cli.init._judge

    def meanwhile(*args):
        (tmp_path / "settings.yaml").write_text("mine")
        return judge(*args)

    monkeypatch.setattr(streamd.cli.init, "_judge", meanwhile)
    done = invoke(tmp_path, "--topic", "shop", "--sample", rows(tmp_path))
    assert isinstance(done.exception, SettingsError) and (tmp_path / "settings.yaml").read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"settings.yaml", "shop.csv"}


def test_records_that_are_refused_are_shown_and_end_with_status_1(tmp_path):
    (tmp_path / "r.ndjson").write_text(json.dumps(RECORD) + "\n" + json.dumps(RECORD | {"ts": None}) + "\n")
    done = invoke(tmp_path, "--topic", "clicks", "--sample", tmp_path / "r.ndjson")
    assert done.exit_code == 1 and "1 refused" in done.output and (tmp_path / "settings.yaml").exists()
    assert f"once {tmp_path / 'r.ndjson'} has no refused rows, which stop a backtest:" in done.output
    assert "ts is missing in 1 of 2 records: such records become dead letters" in comments_of(tmp_path)


def test_a_timestamp_is_preferred_to_a_date(tmp_path):
    (tmp_path / "shop.csv").write_text("who,what,date,timestamp\n" + "".join(
        f"u{n % 7},i{n % 6},2026-03-01,2026-03-01T07:{n}:00Z\n" for n in range(10, 40)))
    invoke(tmp_path, "--topic", "shop", "--sample", tmp_path / "shop.csv")
    assert read(tmp_path).sources[0].fields.time.path == ("timestamp",)


@pytest.mark.parametrize("bad", ["28.11.2026", "n.a.", 7])
def test_a_few_bad_times_do_not_discard_the_time(tmp_path, bad):
    (tmp_path / "r.ndjson").write_text("".join(json.dumps(RECORD | {"ts": bad if n == 39 else RECORD["ts"]}) + "\n" for n in range(40)))
    done = invoke(tmp_path, "--topic", "clicks", "--sample", tmp_path / "r.ndjson")
    assert read(tmp_path).sources[0].fields.time.path == ("ts",) and read(tmp_path).sources[0].time == "iso8601"
    assert f"ts is {str(bad)!r} or such in 1 of 40 records, which iso8601 cannot read" in comments_of(tmp_path)
    assert done.exit_code == 1 and "39 edges; 0 skipped; 1 refused" in done.output


def test_fields_of_a_list_are_named_as_the_settings_have_them(tmp_path):
    lines = [{"sku": f"p{n}", "price": n + 0.5} for n in range(2)]
    (tmp_path / "r.ndjson").write_text("".join(json.dumps({"customer": n % 7, "at": 1790000000 + n, "lines": lines}) + "\n" for n in range(40)))
    for first in ("lines", "lines.0"):
        (tmp_path / "settings.yaml").unlink(missing_ok=True)
        done = invoke(tmp_path, "--topic", "orders", "--sample", tmp_path / "r.ndjson", "--dst", f"{first}.sku", "--features", f"{first}.price")
        assert done.exit_code == 0, done.exception
        source = read(tmp_path).sources[0]
        assert source.each == "lines" and source.fields.dst.path == ("lines.sku",) and list(source.fields.features) == ["lines_price"]


def test_blanks_around_keys_are_reported_once(tmp_path):
    file = tmp_path / "shop.csv"
    file.write_text("who,what,at\n" + "".join(f"u{n % 7}{' ' * (n % 2)},i{n % 6},{1790000000 + n}\n" for n in range(40)))
    done = invoke(tmp_path, "--topic", "shop", "--sample", file)
    assert done.output.count("is another node than") == 1
    for command in ("sources", "check"), ("import",):
        where = () if command == ("sources", "check") else ("--data-dir", str(tmp_path / "data"), "--source", "shop")
        done = CliRunner().invoke(app, [*command, str(file), "--config", str(tmp_path / "settings.yaml"), *where])
        assert done.exit_code == 0 and done.output.count(" which is another key than ") == 1 and "another node" not in done.output


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", "7", '{"a": 1}\n{'])
def test_a_sample_that_is_no_record_is_refused(text):
    with pytest.raises(SettingsError):
        pasted_records(text, 0)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.one_of(st.text(max_size=20), st.integers(-10, 2**40), st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=6))
def test_no_record_breaks_the_file_that_is_written(record):
    """Names and values from outside end neither a comment nor a string of the YAML."""
    records = pasted_records(json.dumps([record, record]), 1)
    guessed = guess("t", records, NOW_US)
    text = settings_text(SampledTopic(broker="b:1", topic="t", sample="x\ny"), guessed)
    loaded = yaml.safe_load(text)
    assert set(loaded) == {"kafka", "sources"} | ({"graph"} & set(guessed.tree)) and loaded["sources"] == guessed.tree["sources"]


@pytest.mark.parametrize("given", ["user.id", "user\\.id"])
def test_a_field_with_a_dot_in_its_name_may_be_given_as_it_is_written(tmp_path, given):
    (tmp_path / "r.ndjson").write_text("".join(json.dumps({"user.id": n % 3, "item": f"i{n % 4}", "ts": "2026-11-22T10:00:00Z"}) + "\n" for n in range(9)))
    done = invoke(tmp_path, "--topic", "t", "--sample", tmp_path / "r.ndjson", "--src", given)
    assert done.exit_code == 0 and "src: user\\.id" in (tmp_path / "settings.yaml").read_text(), done.output
    (tmp_path / "settings.yaml").unlink()
    assert "did you mean 'user\\.id'" in str(invoke(tmp_path, "--topic", "t", "--sample", tmp_path / "r.ndjson", "--src", "user.ids").exception)
