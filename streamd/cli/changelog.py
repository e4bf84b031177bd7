"""The command `streamd changelog verify`."""

import typer

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.errors import KafkaError, SettingsError
from streamd.number_texts import count_noun
from streamd.telemetry.progress import ProgressLine

changelog_app = typer.Typer(
    help="The changelog, by which other machines follow: verify.", no_args_is_help=True
)


@changelog_app.command("verify")
def changelog_verify(config: ConfigOption = None, data_dir: DataOption = None) -> None:
    """Compare a data directory with the changelog, on the leader or a follower, also while a role
    writes the directory. Exit status 1 if they differ."""
    from streamd.replica.changelog.kafka import KafkaReader
    from streamd.replica.changelog.verify import compare
    from streamd.replica.leader.connect import find_changelog
    from streamd.replica.start import check_changelog
    from streamd.store.changelog import changelog_topic

    settings = settings_of(config, data_dir)
    if not settings.log.name:
        raise SettingsError("This log has no changelog.", "set log.name.")
    topic = changelog_topic(settings.log.name)
    found_topic = find_changelog(settings.kafka, settings.log.name, settings.data_dir)
    if found_topic is None:
        raise KafkaError(f"There is no topic {topic}.", "start the leader, which makes it.")
    # The directory may belong to another changelog.
    check_changelog(settings.data_dir, found_topic.changelog)
    reader = KafkaReader(settings.kafka, found_topic.changelog)
    try:
        with ProgressLine(err, f"comparing with {topic}", "records") as line:
            found = compare(settings.data_dir, reader, line.at)
    finally:
        reader.close()
    if found.difference is not None:
        where = found.difference
        at = "" if where.offset is None else f" at byte {where.offset:,}"
        out.print(f"commit {where.seq:,} differs: {where.path}{at}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    out.print(
        f"equal: {count_noun(found.commits, 'commit')} and "
        f"{count_noun(found.num_bytes, 'byte')} of files; "
        f"{count_noun(found.behind, 'commit')} of the changelog not shown here yet",
        markup=False,
        soft_wrap=True,
    )
