"""Records of the changelog: what they carry comes back, and nothing they say is trusted."""


import random

import msgspec
import pytest
from crc32c import crc32c

from streamd.errors import ChangelogError
from streamd.eventlog.journal.journal import decode_line, encode_line
from streamd.eventlog.line_ranges import FileRange
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.writer import LogWriter
from streamd.replica.changelog.records import (
    HEAD_BYTES,
    LENGTH,
    LINE,
    Claim,
    Commit,
    Heartbeat,
    StrayRecord,
    decode_record,
    decode_value,
    encode,
)
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.eventlog import test_crash as life
from tests.replica.twin import Topic


@pytest.mark.parametrize("room", [80, 200, 10_000])
def test_parts_hold_each_byte_once_and_in_order(room):
    line, data = encode_line({"seq": 7, "text": "x" * 300}), bytes(range(256)) * 3
    commit = Commit(1, 7, line, [("nodes.keys", 9)], None, [FileRange("nodes.keys", 5, 700), FileRange("deletions.log", 0, 68)])
    records = list(encode(commit, lambda r: data[r.offset: r.offset + r.num_bytes], HEAD_BYTES + room))
    assert [r.part for r in records] == list(range(len(records))) and {r.parts for r in records} == {len(records)}
    pieces = {}
    for sent in records:
        back = decode_record(3, sent.headers(), sent.value)
        assert back == sent._replace(offset=3) and len(back.value) <= HEAD_BYTES + room
        head, held = decode_value(back)
        assert head.made == ([["nodes.keys", 9]] if sent.part == 0 else []) or head.made == ([("nodes.keys", 9)] if sent.part == 0 else [])
        for path, offset, size in head.pieces:
            found = pieces.setdefault(path, [offset, b""])
            assert offset == found[0] + len(found[1])
            found[1] += bytes(held[:size])
            held = held[size:]
        assert not len(held)
    assert pieces == {LINE: [0, line], "nodes.keys": [5, data[5:705]], "deletions.log": [0, data[:68]]}


def told(tmp_path, commits=3):
    """A topic that tells a few commits, and the directory that they are of."""
    topic = Topic(10**6)
    log = LogWriter(tmp_path / "a", life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(tmp_path / "a", topic.producer(), topic.reader(), member="m"))
    life.live(log, commits, housekeeping=False)
    log.close()
    return topic


def test_any_flipped_bit_is_refused_and_nothing_of_the_commit_is_shown(tmp_path):
    topic, rng = told(tmp_path), random.Random(5)
    headers, value = topic.records[2]
    for number in range(60):
        at = rng.randrange(len(value))
        broken = value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1:]
        topic.records[2] = headers, broken
        follower = Follower(tmp_path / f"b{number}", topic.reader())
        with pytest.raises(ChangelogError, match="checksum"):
            follower.step(0)
        follower.close()
        assert published_seq(tmp_path / f"b{number}") <= 1


def forged(record, change):
    """The same record with another line or head, and right checksums."""
    headers, value = record
    back = decode_record(0, headers, value)
    head, data = decode_value(back)
    line = decode_line(bytes(data[: head.line_bytes]))
    rest, pieces, made = bytes(data[head.line_bytes:]), [list(p) for p in head.pieces[1:]], dict(head.made)
    change(line, pieces, made)
    text = encode_line(line)
    rest = rest[: sum(p[2] for p in pieces)]
    new = msgspec.structs.replace(head, line_bytes=len(text), pieces=[(LINE, 0, len(text)), *map(tuple, pieces)], made=list(made.items()))
    packed = msgspec.json.encode(new)
    value = LENGTH.pack(len(packed)) + packed + text + rest
    return back._replace(line=text[:8].decode(), crc=crc32c(value), value=value).headers(), value


def entry(line, path):
    return next(c for c in line["files"] if c["path"] == path)


HOSTILE = {
    "a path outside of the directory": lambda line, pieces, made: pieces.append(["../../etc/passwd", 0, 1]) or pieces.pop(0),
    "a file that commits do not touch": lambda line, pieces, made: pieces[0].__setitem__(0, "published"),
    "the journal": lambda line, pieces, made: entry(line, "nodes.keys").update(path="journal/00000000000000000001.journal"),
    "bytes that were committed before": lambda line, pieces, made: pieces[-1].__setitem__(1, 0),
    "a huge file": lambda line, pieces, made: entry(line, "nodes.keys").update(bytes=[entry(line, "nodes.keys")["bytes"][0], 2**60]),
    "a huge segment": lambda line, pieces, made: line["segments"].append([line["segments"][0][1] + 10**6, 0, 0, 2**50, 0, [0]]),
    "a segment somewhere else": lambda line, pieces, made: line["segments"].append([10**6, 0, 0, 8, 0, [0]]),
    "more rows than a segment holds": lambda line, pieces, made: line["segments"][0].__setitem__(1, 10**6),
    "fewer bytes than the line says": lambda line, pieces, made: pieces.pop(),
    "a file made that no line names": lambda line, pieces, made: made.update({"edges/default/x": 5}),
    "other bytes": lambda line, pieces, made: entry(line, "nodes.keys").update(crc=5),
    "another total": lambda line, pieces, made: entry(line, "nodes.keys").update(total=5),
    "a jump": lambda line, pieces, made: line.update(seq=9),
    "no files": lambda line, pieces, made: line.pop("files"),
    "text for a number": lambda line, pieces, made: line.update(nodes={}) or line.update(segments="x"),
    "a segment dropped that is not there": lambda line, pieces, made: line.update(dropped=[5]),
    "a replaced file that was not made": lambda line, pieces, made: entry(line, "nodes.keys").update(revision=2),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_record_that_asks_for_something_else_is_refused(tmp_path, what):
    topic = told(tmp_path, 4)
    number = 2  # its commit has rows, keys, features
    topic.records[number] = forged(topic.records[number], HOSTILE[what])
    follower = Follower(tmp_path / "b", topic.reader())
    with pytest.raises(ChangelogError, match=r"Commit 2 of the changelog cannot be applied|differs from its headers|offset 2"):
        follower.step(0)
    follower.close()
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}

    assert published_seq(tmp_path / "b") <= 1


def test_a_forged_record_that_changes_nothing_is_taken(tmp_path):
    """So that the refusals above are of what was changed."""
    topic = told(tmp_path, 4)
    topic.records[2] = forged(topic.records[2], lambda line, pieces, made: None)
    follower = Follower(tmp_path / "b", topic.reader())
    follower.step(0)
    assert follower.seq == 4
    follower.close()


KIND = {"kind": b"claim", "term": b"7"}


@pytest.mark.parametrize("entry", [Claim(3, 7, "host-1", "id", 0), Claim(3, 2**63 - 1, "m" * 255, "é", 2**63 - 1), Heartbeat(3, 2, "host-1")])
def test_claims_and_heartbeats_come_back(entry):
    assert decode_record(3, entry.headers(), entry.value) == entry


@pytest.mark.parametrize("value", [
    b"", b"{}", b"[]", b"null", b'{"member": "m", "id": "i"}', b'{"member": 1, "id": "i", "seq": 0}', b'{"member": "", "id": "i", "seq": 0}',
    b'{"member": "m\\u001b[2J", "id": "i", "seq": 0}', b'{"member": "m", "id": "i", "seq": -1}', b'{"member": "m", "id": "i", "seq": 9223372036854775808}',
    b'{"member": "m", "id": "i", "seq": 0.5}', b'{"member": "' + b"m" * 256 + b'", "id": "i", "seq": 0}', b"[" * 4000, b" " * 5000, b"\xff"])
def test_a_claim_that_says_something_else_is_a_stray(value):
    with pytest.raises(StrayRecord):
        decode_record(3, [*KIND.items(), ("crc", str(crc32c(value)).encode())], value)


@pytest.mark.parametrize("headers", [
    {"kind": b"claim"}, {**KIND, "crc": b"1"}, {"kind": b"heartbeat", "term": b"2"}, {"kind": b"heartbeat", "term": b"+2", "member": b"m"},
    {"kind": b"heartbeat", "term": b"2_0", "member": b"m"}, {"kind": b"heartbeat", "term": b"9" * 19, "member": b"m"},
    {"kind": b"heartbeat", "term": b"9" * 5000, "member": b"m"}, {"kind": b"heartbeat", "term": b"2", "member": b"\xff"}, {"kind": b"merger", "term": b"2"},
    {"kind": b"\xff"}, {"kind": None}])
def test_headers_of_no_record_are_those_of_a_stray(headers):
    with pytest.raises(StrayRecord):
        decode_record(3, list(headers.items()), b"{}")


def test_a_claim_with_a_flipped_bit_is_a_stray():
    claim = Claim(3, 7, "host-1", "id", 9)
    for at in range(len(claim.value)):
        value = claim.value[:at] + bytes([claim.value[at] ^ 1]) + claim.value[at + 1:]
        with pytest.raises(StrayRecord, match="checksum"):
            decode_record(3, claim.headers(), value)


def test_a_record_of_a_newer_release_is_refused_and_not_skipped():
    headers = [("kind", b"merger"), ("term", b"2"), ("crc", str(crc32c(b"{}")).encode())]
    with pytest.raises(ChangelogError, match="offset 3.*'merger', which this streamd does not know"):
        decode_record(3, headers, b"{}")
