"""Names of sharded files (base@N), and the format of a table by its name."""

import re
from pathlib import Path

from streamd.errors import TFGNNError

MAX_SHARDS = 99_999
"""The number of a shard has five digits."""
_SHARDED = re.compile(r"(?P<base>.+)@(?P<count>[0-9]+)(?P<end>(\.[A-Za-z][A-Za-z0-9]*)*)")
"""The file's suffix may follow the number: base@N.tfrecord."""
_SHARD = re.compile(
    r"(?P<base>.+)-(?P<number>[0-9]+)-of-(?P<count>[0-9]+)(?P<end>(\.[A-Za-z0-9]+)*)"
)
"""The name of one shard."""
_TFRECORD = re.compile(r"[_.-]tfrecords?|\btfr\b")
_CSV = re.compile(r"[_.-]csv\b")


def table_format(path: Path) -> str:
    """The format of a table, tfrecord or csv, by its file name.

    Folders do not count. Raises: TFGNNError if the name has neither format.
    """
    if _TFRECORD.search(path.name):
        return "tfrecord"
    if _CSV.search(path.name):
        return "csv"
    raise TFGNNError(
        f"the name {path.name!r} does not contain the format of the table.",
        "name it .csv or .tfrecord.",
    )


def is_csv(path: Path) -> bool:
    """Whether a file's name means CSV; all other names mean records."""
    return not _TFRECORD.search(path.name) and _CSV.search(path.name) is not None


def shard_count(path: Path) -> int | None:
    """N of base@N or base@N.end, None for a file that is not sharded. Raises: TFGNNError for N out
    of range."""
    found = _SHARDED.fullmatch(path.name)
    if found is None:
        return None
    # Nine digits are out of range already, and take no time to parse.
    count = int(found["count"][:9])
    if not 1 <= count <= MAX_SHARDS:
        raise TFGNNError(f"{path} has {found['count'][:9]} shards.", f"use 1 to {MAX_SHARDS}.")
    return count


def shard_paths(path: Path) -> list[Path]:
    """The files to write: all shards of base@N, or the one file. Raises: TFGNNError."""
    count = shard_count(path)
    if count is None:
        return [path]
    found = _SHARDED.fullmatch(path.name)
    assert found is not None
    base, end = found["base"], found["end"]
    return [path.with_name(f"{base}-{i:05d}-of-{count:05d}{end}") for i in range(count)]


def output_path(text: str) -> Path:
    """The file or base@N to write, from the user's text. Raises: TFGNNError for a folder, also by a
    trailing /, which `Path` would drop."""
    path = Path(text)
    if text.rpartition("/")[2] in ("", ".", "..") or path.is_dir():
        raise TFGNNError(
            f"{text!r} is a folder, and a file is written.",
            f"name one, such as {path / 'samples.tfrecord'}.",
        )
    return path


def make_folder_of(path: Path) -> None:
    """Create the folder of a file to write. Raises: TFGNNError if that fails, or if a folder has
    the file's name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "a file has its name" if isinstance(error, FileExistsError) else error.strerror
        raise TFGNNError(
            f"The folder of {path} cannot be made: {why}.", "choose another path."
        ) from None
    if path.is_dir():
        raise TFGNNError(f"{path} is a folder, and a file is written.", "choose another name.")


def is_compressed(path: Path) -> bool:
    """Whether the name of a file, or of a shard, means gzip."""
    return re.search(r"\.gz(-[0-9]{5}-of-[0-9]{5})?$", path.name) is not None


def find_files(path: Path) -> list[Path]:
    """The files to read, by name: a file, a glob such as base-?????-of-00003, or base@N.

    The name of one shard means that file only. A glob skips hidden files. Raises: TFGNNError if no
    file matches, a shard is missing, or a glob matches a shard twice.
    """
    if path.is_file():
        return [path]
    if shard_count(path) is not None:
        # Each shard may be compressed, as a single file may.
        return [_plain_or_gz(shard) for shard in shard_paths(path)]
    if re.search(r"[*?\[]", path.name):
        found = (p for p in path.parent.glob(path.name) if p.is_file())
        matches = sorted(p for p in found if path.name[0] == "." or p.name[0] != ".")
        if not matches:
            raise TFGNNError(f"no file matches {path}.", "check the path.")
        _check_whole(matches, path)
        return matches
    return [_plain_or_gz(path)]


def _check_whole(files: list[Path], path: Path) -> None:
    """Check that each of the N shards is there once, for one N. path: the glob. Raises:
    TFGNNError."""
    shards: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for file in files:
        name = _SHARD.fullmatch(file.name)
        if name is not None:
            key = name["base"], name["end"].removesuffix(".gz")
            shards.setdefault(key, []).append((int(name["count"]), int(name["number"])))
    for (base, end), found in shards.items():
        counts = sorted({count for count, _ in found})
        if len(counts) > 1:
            raise TFGNNError(
                f"{path} matches shards of {counts[0]} and of {counts[1]} files of {base + end!r}.",
                f"name those of one, as {base}@{counts[0]}{end}.",
            )
        # Each number from 0 to N - 1 must be there once.
        numbers = sorted(number for _, number in found)
        if numbers == list(range(len(numbers))) and len(numbers) == counts[0]:
            continue
        missing = next(i for i in range(len(numbers) + 1) if i not in numbers)
        if missing < counts[0]:
            raise TFGNNError(
                f"{path} does not match all {counts[0]} shards of {base + end!r}: number {missing} "
                "is missing.",
                "copy it too; a single file is read by its own name.",
            )
        raise TFGNNError(
            f"{path} matches {len(numbers)} files, and {base + end!r} has {counts[0]} shards.",
            "remove the duplicates.",
        )


def _plain_or_gz(path: Path) -> Path:
    """The file, or the one with .gz after its name. Raises: TFGNNError if there is neither."""
    for found in (path, path.with_name(f"{path.name}.gz")):
        if found.is_file():
            return found
    raise TFGNNError(f"{path} is not a file.", "check the path; shards must all be there.")
