"""The `streamd import` command, which is also `streamd tguf import`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamd.cli.file_options import FileOptions, with_file_options
from streamd.cli.options import (
    ConfigOption,
    DataOption,
    err,
    out,
    print_rounded,
    print_warnings,
    settings_of,
)
from streamd.errors import SettingsError
from streamd.number_texts import count_noun
from streamd.telemetry.progress import ProgressLine

if TYPE_CHECKING:
    from streamd.exchange.warm_start.warm_start import Then

FileArgument = Annotated[
    Path,
    typer.Argument(
        help="A .tguf, .csv, .tsv, .ndjson, .json, .parquet, .arrow or .feather file in order "
        "of time, a folder of such files, or a pipe."
    ),
]


ThenOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Topic from which ingest continues after the file; may be given several times."
    ),
]
AtOption = Annotated[
    str,
    typer.Option(
        help="With --then: the time up to which the file has the topics' events, by default that "
        "of its newest one, or a .json file with the next offset of each partition."
    ),
]
SeamOption = Annotated[
    float,
    typer.Option(
        min=0, help="With --then: compare each event from so long before that time until after."
    ),
]
GapOption = Annotated[
    bool, typer.Option("--accept-gap", help="With --then: continue even if events are missing.")
]


@with_file_options
def import_(
    file: FileArgument,
    then: ThenOption = None,
    at: AtOption = "",
    seam_seconds: SeamOption = 3600.0,
    accept_gap: GapOption = False,
    table: FileOptions = FileOptions(),
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Append a file's events to the log, while no ingest runs; nodes of a TGUF file become integer
    keys."""
    from streamd.exchange.importing import import_file
    from streamd.exchange.key_cells import all_doubts

    # The unit of a TGUF file is fixed.
    if file.suffix.lower() == ".tguf" and table.time_unit not in ("", "us"):
        raise SettingsError(
            f"--time-unit is {table.time_unit}, but the times of TGUF files are microseconds.",
            "leave it out.",
        )
    settings = settings_of(config, data_dir)
    columns = table.columns()

    seam = _seam(then or [], at, seam_seconds, accept_gap)

    with ProgressLine(err, f"importing {file}") as line:
        done = import_file(settings, file, columns, line.at, then=seam)
    out.print(
        f"{count_noun(done.num_events, 'event')} appended to {settings.data_dir}: {done.times}",
        soft_wrap=True,
        markup=False,
    )
    if done.joined is not None:
        out.print(done.joined.words, soft_wrap=True, markup=False)
    print_rounded(done.rounded.words)
    print_warnings(all_doubts(done.odd_keys, done.doubts))


def _seam(topics: list[str], at: str, seam_seconds: float, accept_gap: bool) -> "Then | None":
    """The topics after the file, None without any. Raises: SettingsError for options that need
    one."""
    from streamd.exchange.warm_start.warm_start import Then

    if topics:
        return Then(
            topics=tuple(dict.fromkeys(topics)),
            at=at,
            seam_seconds=seam_seconds,
            accept_gap=accept_gap,
        )
    if at or accept_gap:
        raise SettingsError("--at and --accept-gap need a topic.", "name it with --then.")
    return None
