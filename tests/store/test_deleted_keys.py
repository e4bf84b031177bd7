"""`streamd verify --deleted` finds a key's bytes wherever they are, and says where."""

import base64
import json
import random
from contextlib import closing

import numpy as np
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
from streamd.store.key_bounds import CONTEXT_BYTES, is_whole
from streamd.store.objects import Store
from streamd.store.search import FEW_FORMS, KeySearch, forms_of, is_found_by_chance
from streamd.store.upload import upload
from tests.builders import compact, write_log
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
        forms = [f for f in forms_of(key) if search._forms[f] == number]
        places = [at for f in forms for at in range(len(data)) if data.startswith(f, at) and is_whole(data, at, at + len(f))]
        if places:
            plain[number] = min(places)
    assert found == plain


ROWS = encode_keys(["user:340", "xuser:34", "tenant:user:34", "user:34-b", "my user:34 too", "user:34.5", SetKey(12, "page:8520"), 34, None])
"""Rows of longer keys: `user:34` is the beginning, the end and the middle of one."""
INSIDE = [
    b"user:340", b"xuser:34", b"_user:34", b"user:34_", "user:34\u00e9".encode(), "\u00e9user:34".encode(), "user:34\u0301".encode(), '\U00020000user:34'.encode(),
    rb'"user:34\u00e9"', rb'"\u00e9user:34"', rb'"\uD840\uDC00user:34"', rb'"user:34\uD840\uDC00"', b'{"src": "user:340", "dst": "xuser:34"}', ROWS,
    encode_keys(["user:3", "user:340"]), encode_keys(["user:340"])[:-1]]
"""Bytes with the key only inside longer texts."""
LEFT = [
    b"user:34", b'"user:34"', b"node user:34, gone", b"a=user:34 b", b"user:34.", b"x\xffuser:34\xff", b"x\xa7user:34\xc3", b"user:340 user:34", b"user:340\nxuser:34\nuser:34",
    rb'"a\nuser:34\tb"', rb'"\u0022user:34\u0022"', rb'"\uD83D\uDE00user:34\uD83D\uDE00"', rb'{"value": "{\"src\": \"user:34\"}"}', rb'"\\nuser:34\\n"',
    encode_keys(["user:34"]), encode_keys(["a", "user:34", "b"]), encode_keys(["user:34", SetKey(12, "x")]), encode_keys(["user:34", SetKey(12, 7)]), ROWS + encode_keys(["user:34"]),
    encode_keys(["user:34"]).replace(b"\x00", b"\x02", 1), encode_keys(["user:340"]).replace(b"0", b"\x00"), b"\x00\x00\x00\x00user:34"]
"""Bytes with the key itself, which is left there."""


@pytest.mark.parametrize("more", [0, FEW_FORMS], ids=["few keys", "many keys"])
@pytest.mark.parametrize("cut", [1, 5, 1 << 20])
def test_a_key_inside_a_longer_one_is_no_find_and_one_that_is_left_is(more, cut):
    search = KeySearch(["user:34", *(f"other key {i}" for i in range(more))])

    def found(data):
        return bool(search.find_in([data[at : at + cut] for at in range(0, len(data), cut)]))

    assert not [data for data in INSIDE if found(data)]
    assert not [data for data in LEFT if not found(data)]
    # A row of another set begins with a digit: the row's length decides, not the byte after it.
    assert encode_keys([SetKey(12, "x")])[:1] == b"0"
    long = b"x" * 5000
    cut = max(cut, 5000)
    assert not [data for data in INSIDE if found(long + b"," + data + b"," + long)] and not [data for data in LEFT if not found(long + b"," + data + b"," + long)]


def test_a_key_of_letters_outside_ascii_is_found_in_both_forms_and_not_inside_a_longer_one():
    for key, longer in (("caf\u00e9:1", "caf\u00e9:12"), ("n:caf\u00e9", "n:caf\u00e9s"), ("\u00fcber:1", "t\u00fcber:1")):
        for write in (lambda text: json.dumps(text).encode(), lambda text: f'"{text}"'.encode(), lambda text: encode_keys([text])):
            assert KeySearch([key]).find_in([write(key)]) and not KeySearch([key]).find_in([write(longer)])


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
        TopicRecord(3, b"-" + whole, (), False), TopicRecord(4, b"", (b"src", whole), False), TopicRecord(5, b"." * 50 + whole[:half], (), False),
        TopicRecord(6, whole[half : half + 1], (), True), TopicRecord(7, whole[half + 1 :] + b".", (), True),
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
                path.write_bytes(good[:at] + b" " + key.encode() + b" " + good[at:])
                found, = look()
                assert (found.key, found.at) == (0, at + 1) and str(path.relative_to(folder)) in found.where
                path.write_bytes(good)
        store.put(f"{OBJECTS}/00/{'0' * 62}", b"no manifest names it: " + key.encode())
        found, = search.in_store(store)
        assert found.at == 22
        store.remove([f"{OBJECTS}/00/{'0' * 62}"])

        # nodes.keys is cut every 64 bytes here, amid heads of rows.
        names = [f"n:{i}" for i in range(35)]
        found = {f.key for f in DeletedSearch(names).in_store(store)}
        assert found == set(range(35))
        assert log.num_edges


def test_a_key_that_is_part_of_a_longer_one_is_found_nowhere_in_files_and_objects(tmp_path, monkeypatch):
    """`user:34` is not in the log, and 60 longer keys are, some of them cut by the objects' borders."""
    monkeypatch.setattr("streamd.store.ranges.OBJECT_BYTES", 64)
    longer = [f"user:34{i}" for i in range(20)] + [f"t:user:34.{i}" for i in range(20)] + [f"shop {i} user:34" for i in range(20)]
    write_log(tmp_path / "log", np.arange(60), np.arange(60)[::-1], np.arange(60) * 1_000_000, key_of=longer.__getitem__)
    store = Store(f"file://{tmp_path}/store")
    upload(tmp_path / "log", store)
    search = DeletedSearch(["user:34"])
    assert b"user:34" in (tmp_path / "log/nodes.keys").read_bytes()
    assert not [*search.in_files(tmp_path / "log"), *search.in_store(store)]

    # All longer keys are found, each in an object or at a border.
    found = {f.key: f.where for f in DeletedSearch(longer).in_store(store)}
    assert set(found) == set(range(60)) and 1 < sum(" at the border of " in where for where in found.values()) < 30
    argument = ["verify", "--deleted", "user:34", "--data-dir", str(tmp_path / "log")]
    done = CliRunner().invoke(app, argument, env={"STREAMD_LOG__STORE": f"file://{tmp_path}/store"})
    assert done.exit_code == 0 and "1 key looked up in 60 rows" in done.output and "found 0 times" in done.output, done.output
    (tmp_path / "log/left").write_text("user:341 user:34")
    done = CliRunner().invoke(app, argument)
    assert done.exit_code == 1 and "key 1 in left, byte 9" in done.output and "1 file" not in done.output and "found once" in done.output, done.output


def test_records_tell_a_longer_key_over_the_border_of_two_parts():
    def found(*values):
        return [f.where for f in DeletedSearch(["user:34"]).in_topic(TwinTopic(*(TopicRecord(n, v, (), n > 0) for n, v in enumerate(values))))]

    assert not found(b"a user:34", b"0") and not found(b"a x", b"user:34,") and not found(b"user:", b"34", b"0")
    assert found(b"a user:34", b",") == ["graph.changelog at offset 0"] and found(b"a ", b"user:34") == ["graph.changelog at offset 1"]
    assert found(b"user:", b"34", b".") == ["graph.changelog at offset 1"]
    assert [f.where for f in DeletedSearch(["user:34"]).in_topic(TwinTopic(TopicRecord(0, b"user:34", (b"user:340",), False), TopicRecord(1, b"0", (b"user:34",), False)))] == [
        "graph.changelog at offset 0", "graph.changelog at offset 1"]


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
        (tmp_path / "x").write_bytes(b" " * at + key + b" " * 30_000)
        found, = DeletedSearch([key.decode()]).in_files(tmp_path)
        assert found.at == at
    sizes = []
    find = KeySearch.find
    monkeypatch.setattr(KeySearch, "find", lambda self, data, *part: (sizes.append(len(data)), find(self, data, *part))[1])
    list(DeletedSearch([key.decode()]).in_files(tmp_path))
    assert max(sizes) <= 1000 + 3 * CONTEXT_BYTES + len(key)


