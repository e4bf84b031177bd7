"""Scores as a table: the log's events that have a record, each once, from a file or a topic."""

import json
import uuid

import numpy as np
import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import KafkaError, QueryError, SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.scoring.stored_scores import FileScores, TopicScores
from streamd.table.sql.session import SqlSession
from tests.builders import settings
from tests.table.logs import HOUR_US, score_lines, us, visible_ids


@pytest.fixture
def file(shop, tmp_path):
    """Scores of the newest 600 events of the shop, deleted ones among them, as lines of a console consumer."""
    path = tmp_path / "scores.ndjson"
    path.write_bytes(b"\n".join(score_lines(shop, range(300, 900))) + b"\n")
    return path


def test_a_row_is_an_event_with_its_record(shop, file):
    log = LogReader.open(shop)
    ids = visible_ids(log)
    ids = ids[ids >= 300]
    with streamd.open_log(shop) as snapshot:
        found = snapshot.scores(file).read_all()
        assert found.schema.names == ["event", "edge_set", "src", "dst", "time", "version", "memory_event", "known", "score", "rank", "candidates",
                                      "surprise", "p_value", "scored_at"]
        np.testing.assert_array_equal(found["event"], ids)
        assert 0 < len(ids) < 600, "some are deleted"
        np.testing.assert_array_equal(found["dst"], log.gather("dst", ids))
        records = {one["event"]: one for one in map(json.loads, file.read_bytes().splitlines())}
        for name in ("version", "known", "score", "rank", "candidates", "surprise", "p_value"):
            assert found[name].to_pylist() == [records[i][name] for i in ids.tolist()]
        assert us(found["scored_at"]) == [round(records[i]["scored_at"] * 1e6) for i in ids.tolist()]
        events = snapshot.events(columns=["event", "edge_set", "original_time", "src_key", "dst_key_int"]).read_all().slice(len(visible_ids(log)) - len(ids))
        assert snapshot.scores(file, columns=events.schema.names).read_all().equals(events)


def test_times_bound_the_rows(shop, file):
    log = LogReader.open(shop)
    with streamd.open_log(shop) as snapshot:
        found = snapshot.scores(file, since=3 * HOUR_US, until="1970-01-01 04:00", columns=["event"]).read_all()
        assert found["event"].to_pylist() == [i for i in visible_ids(log, None, 3 * HOUR_US, 4 * HOUR_US).tolist() if i >= 300] != []


def test_an_event_that_was_scored_again_is_one_row_and_records_of_others_are_none(shop, tmp_path):
    lines = [json.loads(line) for line in score_lines(shop, range(100, 110))]
    others = [{**lines[0], "event": 900}, {**lines[1], "time_us": lines[1]["time_us"] + 1, "event": 200}, {**lines[2], "src": "u:99"},
              {**lines[3], "dst": 99}, {**lines[4], "edge_set": "nothing"}, {**lines[5], "event": -1}]
    path = tmp_path / "scores.ndjson"
    path.write_text("\n\n".join(map(json.dumps, [*others, *lines, *lines[3:7]])))
    with streamd.open_log(shop) as snapshot:
        assert snapshot.scores(path, columns=["event"]).read_all()["event"].to_pylist() == list(range(100, 110))


def test_a_line_that_is_no_score_and_a_missing_file_are_named(shop, file, tmp_path):
    with file.open("ab") as out:
        out.write(b'{"event": 3}\n')
    with streamd.open_log(shop) as snapshot:
        with pytest.raises(SettingsError, match="scores.ndjson line 601 is not a record of a score topic"):
            snapshot.scores(file).read_all()
        with pytest.raises(SettingsError, match="none cannot be read: No such file"):
            snapshot.scores(tmp_path / "none").read_all()
        with pytest.raises(SettingsError, match="server.score_topic is not set.*name a file"):
            snapshot.scores().read_all()
        with pytest.raises(StreamdError, match="scores has no column 'ranks'.*did you mean 'rank'"):
            snapshot.scores(file, columns=["ranks"])


def test_sql_reads_scores_only_if_a_statement_names_them(shop, file):
    with streamd.open_log(shop) as snapshot:
        without = SqlSession(snapshot, 1 << 28)
        assert without.query("select count(*) as n from nodes").read_all()["n"].to_pylist() == [35]
        with pytest.raises(SettingsError, match="server.score_topic is not set"):
            without.query("from scores").read_all()
        session = SqlSession(snapshot, 1 << 28, scores=FileScores(file))
        text = "select event, rank, price from scores join events_buys using (event) where scores.time >= '1970-01-01 04:00' and rank > 50"
        found = session.query(text).read_all()
        assert found.num_rows > 0 and min(found["rank"].to_pylist()) > 50
        with pytest.raises(QueryError, match="is not allowed"):
            session.query("insert into scores select * from scores").read_all()


def run(shop, statement, *options):
    done = CliRunner().invoke(app, ["sql", statement, "--format", "json", "--data-dir", str(shop), *options])
    return done.exit_code, done.stdout + str(done.exception or "")


def test_the_command_reads_a_file_of_scores(shop, file):
    code, text = run(shop, "select count(*) as n from scores", "--scores", str(file))
    log = LogReader.open(shop)
    assert code == 0 and json.loads(text) == {"n": int((visible_ids(log) >= 300).sum())}
    code, text = run(shop, "from scores")
    assert code == 1 and "server.score_topic is not set" in text


@pytest.mark.kafka
def test_a_topic_is_read_up_to_its_end_at_the_first_read(kafka, shop, tmp_path, monkeypatch):
    topic = f"scores-{uuid.uuid4().hex}"
    monkeypatch.setenv("STREAMD_SERVER__SCORE_TOPIC", topic)
    monkeypatch.setenv("STREAMD_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with streamd.open_log(shop) as snapshot:
        with pytest.raises(KafkaError, match="does not exist"):
            snapshot.scores().read_all()
        kafka.create_topic(topic, 3)
        assert snapshot.scores().read_all().num_rows == 0
        with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for number, line in enumerate(score_lines(shop, range(300, 900))):
                producer.send(topic, line, partition=number % 3)
            producer.send(topic, b"nothing of ours", partition=1)
            producer.send(topic, None, key=b"x", partition=2)
            producer.flush()
            log = LogReader.open(shop)
            visible = visible_ids(log).tolist()
            ids = [i for i in visible if i >= 300]
            assert sorted(snapshot.scores(columns=["event"]).read_all()["event"].to_pylist()) == ids
            source = TopicScores(settings(shop, kafka__bootstrap_servers=kafka.bootstrap_servers).kafka, topic)
            table = snapshot.score_table(source)
            first = snapshot.read(table, "scores").read_all()
            producer.send(topic, score_lines(shop, range(visible[0], visible[0] + 1))[0])
            producer.flush()
            assert snapshot.read(table, "scores").read_all().num_rows == first.num_rows == len(ids), "as of the first read"
        assert run(shop, "select count(*) as n from scores where event < 300")[1] == '{"n": 1}\n'
