"""The file that says where a directory stands in the changelog."""

import struct

import pytest
from crc32c import crc32c

from streamd.eventlog.journal.changelog_position import (
    CHANGELOG,
    FILE_BYTES,
    UNKNOWN,
    ChangelogId,
    ChangelogPosition,
    PositionFile,
    read_position,
)

ONE = ChangelogId("4L6g3nShT-eMCtK--X86sw", "5e7f2b1c-9f5e-4e0e-8d5a-0d6a2f1b3c4d", "trips.changelog")


def test_the_newest_position_is_read_back_and_damage_counts_as_none(tmp_path):
    assert read_position(tmp_path) is None
    file = PositionFile(tmp_path, ONE)
    file.write(ChangelogPosition(1, 7, 12))
    file.write(ChangelogPosition(1, 8, 2**40))
    file.close()
    file.close()
    found = read_position(tmp_path)
    assert found == ChangelogPosition(1, 8, 2**40) and found.changelog == ONE
    path = tmp_path / CHANGELOG
    data = path.read_bytes()
    assert len(data) == FILE_BYTES
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        assert read_position(tmp_path) is None
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert read_position(tmp_path) is None


def test_format_1_is_read_and_written_anew_with_the_changelogs_names(tmp_path):
    numbers = struct.pack("<4Q", 1, 3, 7, 12)
    (tmp_path / CHANGELOG).write_bytes(numbers + struct.pack("<Q", crc32c(numbers)))
    found = read_position(tmp_path)
    assert found == ChangelogPosition(3, 7, 12) and found.changelog == UNKNOWN
    file = PositionFile(tmp_path, ONE)
    assert read_position(tmp_path) == found, "opening it changes nothing"
    file.write(found)
    file.close()
    assert read_position(tmp_path) == found and read_position(tmp_path).changelog == ONE


def test_the_longest_names_that_brokers_give_have_room(tmp_path):
    longest = ChangelogId("c" * 128, "5e7f2b1c-9f5e-4e0e-8d5a-0d6a2f1b3c4d", "t" * 249)
    file = PositionFile(tmp_path, longest)
    file.write(ChangelogPosition(1, 2**63, 2**63))
    file.close()
    assert read_position(tmp_path).changelog == longest and (tmp_path / CHANGELOG).stat().st_size == FILE_BYTES


@pytest.mark.parametrize(("other", "differs"), [
    (ONE, False), (ONE._replace(cluster="another"), True), (ONE._replace(topic_id="another"), True), (ONE._replace(topic="another"), True),
    (ONE._replace(topic_id=""), False), (ONE._replace(cluster="", topic_id=""), False), (UNKNOWN, False),
    (ChangelogId("another", "", "trips.changelog"), True)])
def test_what_both_know_tells_one_changelog_from_another(other, differs):
    assert ONE.is_other(other) == other.is_other(ONE) == differs
