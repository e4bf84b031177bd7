"""The file that says where a directory stands in the changelog."""

from streamd.segments.changelog_position import (
    CHANGELOG,
    ChangelogPosition,
    PositionFile,
    read_position,
)


def test_the_newest_position_is_read_back_and_damage_counts_as_none(tmp_path):
    assert read_position(tmp_path) is None
    file = PositionFile(tmp_path)
    file.write(ChangelogPosition(1, 7, 12))
    file.write(ChangelogPosition(1, 8, 2**40))
    file.close()
    file.close()
    assert read_position(tmp_path) == ChangelogPosition(1, 8, 2**40)
    path = tmp_path / CHANGELOG
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
        assert read_position(tmp_path) is None
    path.write_bytes(data[:-1])
    assert read_position(tmp_path) is None
