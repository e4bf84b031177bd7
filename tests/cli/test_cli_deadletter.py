"""`streamd deadletter`: late letters are reported, and it asks before it sends them."""

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.decode import decoder
from streamd.decode.wire import OWN_EVENT_US
from streamd.errors import SchemaRegistryError, SettingsError
from streamd.ingest.dead_letters import replay as deadletter_replay
from streamd.ingest.dead_letters.outlook import LogView, outlook
from streamd.ingest.dead_letters.replay import StoredLetter
from streamd.ingest.dead_letters.sinks import REASONS, DeadLetter, LocalDeadLetters
from streamd.telemetry import metrics
from tests.builders import settings
from tests.ingest.world import World

MINUTE = 60_000_000


class Outbox:
    """A producer that keeps what it is given."""

    def __init__(self):
        self.sent = []

    def send(self, topic, value, key, headers, timestamp_ms):
        self.sent.append({"value": value, "key": key, "headers": headers, "stamp_us": timestamp_ms * 1000})
        return self

    def flush(self): ...

    def get(self, timeout): ...

    def close(self): ...


@pytest.fixture
def outbox(monkeypatch):
    made = Outbox()
    monkeypatch.setattr(deadletter_replay, "make_producer", lambda kafka: made)
    monkeypatch.setattr("streamd.cli.options.out.width", 300)
    return made


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A log with dead letters: two events that came late, by up to an hour, and one whose field is missing."""
    world = World(tmp_path, 2, ingest__late_policy="dead_letter", ingest__merge_wait_seconds=0.05, kafka__topics=("events",))
    now = world.clock.now_us()
    world.send(0, {"src": "a", "dst": "b", "time": now})
    world.run(1)
    world.send(1, {"src": "a", "dst": "c", "time": now - 60 * MINUTE}, {"src": "a", "dst": "d", "time": now - 1}, {"src": "a", "time": now})
    world.send(0, {"src": "a", "dst": "b", "time": now + 1}, {"src": "", "dst": "e", "time": now + 2})
    world.run(1)
    assert sorted(x["reason"] for x in world.dead_letters()) == ["bad_key", "late", "late", "missing_field"]
    monkeypatch.setattr("streamd.clock.SystemClock.now_us", lambda self: world.clock.now_us())
    return world


def invoke(*words, answer=None):
    return CliRunner().invoke(app, ["deadletter", *map(str, words)], input=answer)


def replay(world, *words, answer=None, policy="clamp"):
    config = world.path / "settings.yaml"
    config.write_text(f"stream: {{time_unit: us}}\nkafka: {{topics: [events]}}\ningest: {{late_policy: {policy}}}\n")
    return invoke("replay", "--config", config, "--data-dir", world.path, *words, answer=answer)


def test_letters_behind_the_log_are_told_and_sent_only_where_someone_says_so(world, outbox):
    told = replay(world, "--reason", "late", answer="n\n")
    assert told.exit_code == 1 and not outbox.sent
    assert "2 of 2 dead letters are late: up to 60 min before " in told.output and "the time that the log has reached" in told.output
    assert "late_policy: clamp a late event gets that time instead of its own" in told.output
    again = replay(world, "--reason", "late", policy="dead_letter")
    assert again.exit_code == 1 and "becomes a dead letter again (late)" in again.output, "and without a terminal nothing is sent"
    assert replay(world, "--reason", "late", answer="y\n").exit_code == 0 and len(outbox.sent) == 2
    assert replay(world, "--reason", "late", "--again", "--yes").exit_code == 0 and len(outbox.sent) == 4


def test_letters_in_time_are_sent_without_a_question(world, outbox):
    asked = replay(world, "--in-time")
    assert asked.exit_code == 1 and not outbox.sent, "these two would come back, so without a terminal nothing is sent"
    done = replay(world, "--in-time", "--yes")
    assert done.exit_code == 0 and len(outbox.sent) == 2, done.output
    assert "2 sent, 2 left out as late or perhaps late, 0 were sent before" in done.output
    assert "2 of 2 dead letters to send will be refused again." in done.output and "--in-time leaves out 2 dead letters." in done.output
    assert replay(world, "--reason", "bad_key").exit_code == 0, "no late one is left: nothing is asked"


def test_without_a_log_nothing_tells_what_is_behind_it(world, outbox, tmp_path):
    other = tmp_path / "other"
    (other / "deadletter").mkdir(parents=True)
    (other / "deadletter/current.jsonl").write_bytes((world.path / "deadletter/current.jsonl").read_bytes())
    world.path = other
    told = replay(world, "--reason", "bad_key")
    assert told.exit_code == 1 and "holds no log, so it is unknown which are late" in told.output and not outbox.sent


def test_letters_whose_schema_cannot_be_asked_for_may_be_behind_the_log(tmp_path, monkeypatch):
    class Away:
        def value_of(self, record):
            return record.value

        def prepare(self, values, waiting):
            raise SchemaRegistryError("http://registry does not answer.", "check it.")

    monkeypatch.setattr(decoder, "make_format", lambda source, settings, max_rows: Away())
    s = settings(tmp_path, sources=[{"topic": "events", "format": "arrow", "fields": {"src": "u", "dst": "v", "time": "t"}}])
    of_events = StoredLetter(DeadLetter("events", 0, 0, -1, "bad_arrow", "why", 5, b"x"), True)
    own = StoredLetter(DeadLetter("others", 0, 0, -1, "late", "why", 5, b'{"src": 1, "dst": 2, "time": 5}'), True)
    found = outlook(s, [of_events, own], LogView(watermark_us=9, num_nodes=0, ids_of=lambda keys: {}, count_edges=None), now_us=10**15)
    assert (found.unknown, found.late, found.behind_us) == ({0}, {1}, 4)


def test_replayed_letters_are_marked_in_the_list_which_takes_a_topic(world, outbox):
    assert replay(world, "--in-time", "--yes").exit_code == 0
    shown = invoke("list", "--data-dir", world.path).output
    assert shown.count(" yes ") == 2 and "2 sent again" in shown
    for command in ("list", "replay"):
        absent = invoke(command, "--topic", "others", "--data-dir", world.path)
        assert absent.exit_code == 0 and "no dead letters of topic others; there are some of events\n" in absent.output
    both = invoke("list", "--topic", "events", "--topic", "others", "--data-dir", world.path).output
    assert "late 2" in both and "no dead letters of topic others" in both
    assert invoke("list", "--data-dir", world.path / "other").output == "no dead letters\n"
    assert "of topic others; there are none" in invoke("list", "--topic", "others", "--data-dir", world.path / "other").output


def test_the_list_shows_a_value_that_is_empty_or_null_and_the_unit_of_times(tmp_path, monkeypatch):
    monkeypatch.setattr("streamd.cli.options.out.width", 300)
    store = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    delete = b'{"type":"delete","src":"a","dst":"b","time":1700000000000000}'
    for n, (reason, value, form) in enumerate([("bad_json", b"", ""), ("tombstone", b"", ""), ("unmatched_delete", delete, OWN_EVENT_US), ("late", delete, "")]):
        store.add(DeadLetter("t", 0, n, -1, reason, "why", 5, value, form))
    store.flush()
    head, *rows = CliRunner().invoke(app, ["deadletter", "list", "--data-dir", str(tmp_path)], env={"COLUMNS": "300"}).output.splitlines()[:5]
    assert [row[head.index("value"):] for row in rows] == ["(empty)", "(null)", f"{delete.decode()} (times in microseconds)", delete.decode()]


def test_letters_in_time_need_no_answer_for_those_that_are_left_out(world, outbox):
    done = replay(world, "--in-time", "--reason", "late")
    assert done.exit_code == 0 and not outbox.sent and "Send" not in done.output, done.output


def test_deletes_that_match_nothing_and_nodes_beyond_the_limit_will_be_refused_again(tmp_path, outbox, monkeypatch):
    world = World(tmp_path, 1, kafka__topics=("events",), ingest__max_nodes=4, ingest__tombstones="delete")
    now = world.clock.now_us()
    for event in ({"src": "a", "dst": "b", "time": now}, {"type": "delete", "node": "x"}, {"type": "delete", "src": "a", "dst": "b", "time": now - 5},
                  {"src": "c", "dst": "d", "time": now}, {"src": "e", "dst": "f", "time": now}, {"type": "delete", "node": "c"},
                  {"type": "delete", "node": "c"}):
        world.send(0, event)
    world.run(2).stop()
    assert sorted(x["reason"] for x in world.dead_letters()) == ["node_limit", *["unmatched_delete"] * 3]
    monkeypatch.setattr("streamd.clock.SystemClock.now_us", lambda self: world.clock.now_us())
    config = world.path / "settings.yaml"
    config.write_text("stream: {time_unit: us}\nkafka: {topics: [events]}\ningest: {max_nodes: 4}\n")
    told = invoke("replay", "--config", config, "--data-dir", world.path, answer="n\n")
    assert told.exit_code == 1 and "4 of 4 dead letters to send will be refused again." in told.output, told.output
    # With room for them the edge of two nodes is taken.
    config.write_text("stream: {time_unit: us}\nkafka: {topics: [events]}\n")
    assert "3 of 4 dead letters to send will be refused again." in invoke("replay", "--config", config, "--data-dir", world.path, answer="n\n").output


def test_replayed_events_and_labels_behind_the_log_are_counted_where_they_are_clamped(tmp_path):
    world = World(tmp_path, 2, stream__label_dim=1, ingest__merge_wait_seconds=0.05)
    now, before = world.clock.now_us(), metrics.clamped_total()
    world.send(0, {"src": "a", "dst": "b", "time": now})
    world.run(1)
    world.send(1, {"src": "a", "dst": "c", "time": now - MINUTE}, {"type": "label", "node": "a", "time": now - MINUTE, "target": [1]})
    world.run(1).stop()
    assert metrics.clamped_total() - before == 2


@pytest.mark.parametrize("command", ["list", "replay"])
def test_a_mistyped_reason_is_an_error_that_names_the_known_ones(command, outbox):
    unlike = invoke(command, "--reason", "no_such_thing").exception
    assert isinstance(unlike, SettingsError) and "'no_such_thing'." in str(unlike) and "did you mean" not in str(unlike)
    error = invoke(command, "--reason", "late", "--reason", "mising_field").exception
    assert isinstance(error, SettingsError) and "'mising_field'; did you mean 'missing_field'?" in str(error)
    assert all(reason in str(error) for reason in REASONS) and not outbox.sent
