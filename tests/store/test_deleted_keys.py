"""`streamd verify --deleted` finds a key's bytes wherever they are, and says where."""

import base64
import json
import random
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.eventlog.key_search import find_keys
from streamd.eventlog.line_ranges import FileRange
from streamd.eventlog.node_keys import encode_keys
from streamd.events import SetKey
from streamd.ingest.dead_letters.search import LetterProof
from streamd.replica.changelog.key_rows import find_in_changelog
from streamd.replica.changelog.records import Commit, encode
from streamd.store import deleted_keys as searching
from streamd.store import manifests
from streamd.store.deleted_keys import DeletedSearch, TopicRecord, read_keys
from streamd.store.file_set import OBJECTS
from streamd.store.objects import Store
from streamd.store.search import FEW_FORMS, KeySearch, is_found_by_chance
from streamd.store.upload import upload
from tests.builders import compact
from tests.store.test_store import rich_log

WORDS = st.text("ab\u00e9\"1:", min_size=1, max_size=12)


@given(st.lists(WORDS, min_size=1, max_size=FEW_FORMS + 8, unique=True), st.lists(st.binary(max_size=30) | WORDS.map(str.encode), max_size=20),
       st.integers(1, 40))
def test_a_search_finds_what_a_plain_one_finds_wherever_the_stream_is_cut(keys, parts, cut):
    data = b"".join(parts)
    search = KeySearch(keys)
    found = search.find_in([data[at : at + cut] for at in range(0, len(data), cut)])
    plain = {}
    for number, key in enumerate(keys):
        forms = [f for f in searching_forms(key) if search._forms[f] == number]
        places = [data.find(f) for f in forms if f in data]
        if places:
            plain[number] = min(places)
    assert found == plain


def searching_forms(key):
    from streamd.store.search import forms_of

    return forms_of(key)


def test_a_key_is_known_as_nodes_keys_and_as_json_store_it():
    for key in ("caf\u00e9 \"x\"", "user:7"):
        assert KeySearch([key]).find_in([b"xx" + encode_keys([key])]), key
    assert KeySearch(["caf\u00e9"]).find_in([b'{"src": "caf\\u00e9"}'])
    assert [key for key in ("1234567890", "-1234567", "n:1", "long enough") if not is_found_by_chance(key)] == ["long enough"]


@given(st.lists(st.integers(-3, 300) | WORDS | st.builds(SetKey, st.integers(1, 2), st.integers(0, 9) | WORDS), unique=True, max_size=40), st.data())
def test_a_key_is_found_by_its_type_and_node_set_and_never_inside_another(tmp_path_factory, stored, data):
    folder = tmp_path_factory.mktemp("keys")
    rows = encode_keys(stored)
    (folder / "nodes.keys").write_bytes(rows)
    wanted = data.draw(st.lists(st.sampled_from(stored) if stored else st.just(1), unique=True))
    others = [key for key in (8, "8", SetKey(1, 8), SetKey(1, "8"), "", 0) if key not in stored]
    found = find_keys(folder, len(rows), [*wanted, *others])
    assert {(row.key, row.node) for row in found} == {(key, stored.index(key)) for key in wanted if key in stored}
    assert all(rows[row.at :].startswith(encode_keys([row.key])) for row in found)


def letter(value, key=b""):
    line = {"value_base64": base64.b64encode(value).decode(), "key_base64": base64.b64encode(key).decode()}
    return json.dumps(line).encode() + b"\n"


@pytest.mark.parametrize(("value", "record_key", "has"), [
    (b'{"src": 8, "dst": "a"}', b"", True), (b'{"src": "8"}', b"", False), (b'{"src": 88, "at": 1.8}', b"", False), (b'{"ok": true, "x": [[8]]}', b"", True),
    (b'{"src": 1}\n{"src": 8}\n', b"", True), (b'{\n "src": 8\n}', b"", True), (b"no JSON, user 8", b"", True), (b"no JSON, user 88", b"", False),
    (b"{}", b'{"id": 8}', True), (b"{}", b"x8", False), (b"\xff\xfe", b"\xff", False)])
def test_a_dead_letter_holds_a_key_by_its_type_in_json_and_as_a_word_elsewhere(value, record_key, has):
    assert LetterProof([8]).is_in(letter(value, record_key)) == has


def test_a_dead_letter_of_a_mapping_holds_a_key_without_the_prefix():
    line = letter(b'{"user_id": 8}')
    assert LetterProof(["user:8"], ["user:"]).is_in(line) and not LetterProof(["user:8"]).is_in(line) and not LetterProof(["user:88"], ["user:"]).is_in(line)


def test_the_changelog_is_searched_by_whole_rows_over_the_parts_of_a_commit():
    keys = [1, "8", 8, "user:8", SetKey(1, 8), 2048]
    rows = encode_keys(keys)

    def records(num_parts):
        line = b"00000000 x\n"
        ranges = [FileRange("edges/default/0", 0, 8), FileRange("nodes.keys", 0, len(rows))]
        commit = Commit(1, 5, line, [], None, ranges)
        made = list(encode(commit, lambda r: rows[r.offset : r.offset + r.num_bytes] if r.path == "nodes.keys" else encode_keys([9])[-8:], num_parts))
        return [TopicRecord(n, r.value, (), r.part != 0, tuple(r.headers())) for n, r in enumerate(made)]

    stray = TopicRecord(99, encode_keys([8]), (), False)
    for part_bytes in (1 << 20, (1 << 16) + 250):
        sent = records(part_bytes)
        assert len(sent) == 1 or part_bytes < 1 << 20
        found = list(find_in_changelog([*sent, stray], "g.changelog", {8: 0, "8": 1, SetKey(1, 8): 2, "user:8": 3, 9: 4, SetKey(1, "8"): 5}))
        assert {f.key for f in found} == {0, 1, 2, 3}


def test_keys_come_as_words_and_from_files(tmp_path):
    (tmp_path / "keys").write_text("n:1\nn:2\n\nn:1\n")
    assert read_keys([f"@{tmp_path}/keys", "n:3"]) == ["n:1", "n:2", "n:3"]
    for wrong in ([f"@{tmp_path}/none"], [""]):
        with pytest.raises(SettingsError):
            read_keys(wrong)


class TwinTopic:
    """A topic in memory."""

    name, num_records = "graph.changelog", 3

    def __init__(self, *records):
        self._records = records

    def records(self):
        yield from self._records


def test_records_are_searched_with_their_headers_keys_and_further_parts():
    key = "user:alice@example.org"
    whole, half = key.encode(), len(key) // 2
    topic = TwinTopic(
        TopicRecord(3, b"x" + whole, (), False), TopicRecord(4, b"", (b"src", whole), False), TopicRecord(5, b"z" * 50 + whole[:half], (), False),
        TopicRecord(6, whole[half : half + 1], (), True), TopicRecord(7, whole[half + 1 :] + b"z", (), True),
        TopicRecord(8, whole[:half], (), False), TopicRecord(9, whole[half:], (), False))
    found = [f.where for f in DeletedSearch([key]).in_topic(topic)]
    assert found == [f"graph.changelog at offset {n}" for n in (3, 4, 7)]


def test_a_key_is_found_in_every_file_and_object_and_where_two_objects_meet(tmp_path, monkeypatch):
    """Each file and each object in turn gets the key; then a key lies in two objects."""
    key = "user:bob@example.org"
    monkeypatch.setattr("streamd.store.ranges.OBJECT_BYTES", 64)
    with closing(rich_log(tmp_path / "log", 3)) as log:
        (tmp_path / "log/deadletter").mkdir()
        (tmp_path / "log/deadletter/1.ndjson").write_bytes(b"{}")
        (tmp_path / "log/train/replay").mkdir(parents=True)
        (tmp_path / "log/train/replay/x.safetensors").write_bytes(b"y" * 100)
        store = Store(f"file://{tmp_path}/store")
        upload(tmp_path / "log", store)
        search = DeletedSearch([key, "not there at all"])
        assert not [*search.in_files(tmp_path / "log"), *search.in_store(store)]
        assert search.searched.files > 10 and search.searched.objects > 10
        draw = random.Random(0)
        folders = [(tmp_path / "log", lambda: search.in_files(tmp_path / "log")), (tmp_path / "store", lambda: search.in_store(store))]
        for folder, look in folders:
            paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.parent.name != "manifests"]
            for path in draw.sample(paths, 10):
                good = path.read_bytes()
                at = draw.randrange(len(good) + 1)
                path.write_bytes(good[:at] + key.encode() + good[at:])
                found, = look()
                assert (found.key, found.at) == (0, at) and str(path.relative_to(folder)) in found.where
                path.write_bytes(good)
        store.put(f"{OBJECTS}/00/{'0' * 62}", b"no manifest names it: " + key.encode())
        found, = search.in_store(store)
        assert found.at == 22
        store.remove([f"{OBJECTS}/00/{'0' * 62}"])

        # nodes.keys is cut every 64 bytes here, and n:9 lies across a border, or in an object.
        names = [f"n:{i}" for i in range(35)]
        found = {f.key: f.where for f in DeletedSearch(names).in_store(store)}
        assert set(found) == set(range(35)) and any(" at the border of " in where for where in found.values())
        assert log.num_edges


def test_what_compaction_removed_is_found_before_and_nowhere_after(tmp_path):
    with closing(rich_log(tmp_path / "log")) as log:
        key = "n:32"
        keys = ["--deleted", key, "--data-dir", str(tmp_path / "log")]
        done = CliRunner().invoke(app, ["verify", *keys], env={"STREAMD_LOG__STORE": f"file://{tmp_path}/store"})
        assert done.exit_code == 1 and "key 1 in nodes.keys, byte" in done.output and key not in done.output.replace("nodes.keys", "")
        compact(log)
        done = CliRunner().invoke(app, ["verify", *keys])
        assert done.exit_code == 0 and "found 0 times" in done.output
        store = Store(f"file://{tmp_path}/store")
        upload(tmp_path / "log", store)
        assert manifests.names(store)
        done = CliRunner().invoke(app, ["verify", *keys], env={"STREAMD_LOG__STORE": f"file://{tmp_path}/store"})
        assert done.exit_code == 0
        grow_with = [b"n:32" in p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()]
        assert not any(grow_with)


def test_a_file_larger_than_a_chunk_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "CHUNK_BYTES", 1000)
    key = b"user:carol@example.org"
    for at in range(970, 1005, 3):
        (tmp_path / "x").write_bytes(b"a" * at + key + b"b" * 3000)
        found, = DeletedSearch([key.decode()]).in_files(tmp_path)
        assert found.at == at
    sizes = []
    find = KeySearch.find
    monkeypatch.setattr(KeySearch, "find", lambda self, data: (sizes.append(len(data)), find(self, data))[1])
    list(DeletedSearch([key.decode()]).in_files(tmp_path))
    assert max(sizes) <= 1000 + len(key)


