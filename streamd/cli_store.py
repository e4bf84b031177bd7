"""The commands `streamd backup` and `streamd restore`: a data directory to a store and back."""

from pathlib import Path
from typing import Annotated

import typer

from streamd.cli_options import ConfigOption, DataOption, err, out, settings_of
from streamd.telemetry.progress import ProgressLine

UrlArgument = Annotated[
    str,
    typer.Argument(
        help="The store: file:///backups/taxi, s3://bucket/folder, gs://..., abfs://..."
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(min=1, help="Seconds that one object is tried for where the store fails.")
]


def backup(
    url: UrlArgument,
    keep: Annotated[
        int,
        typer.Option(
            min=0,
            help="Keep the newest so many manifests, and remove the others and what only they "
            "name; 0 keeps all.",
        ),
    ] = 0,
    timeout: TimeoutOption = 60,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Back a data directory up to a store, also while the daemon runs: only what the store lacks is
    sent, the manifest last."""
    from streamd.store.store import Store
    from streamd.store.sweep import remove_unneeded
    from streamd.store.upload import upload

    settings = settings_of(config, data_dir)
    store = Store(url, timeout)
    with ProgressLine(err, f"backing up to {store.shown}", "bytes") as line:
        done = upload(settings.data_dir, store, line.at)
    text = (
        f"{done.manifest.name} written: commit {done.manifest.seq:,}, {done.objects:,} objects "
        f"and {done.num_bytes:,} bytes sent, the rest was there"
    )
    if keep:
        manifests, objects = remove_unneeded(store, keep)
        text += f"; {manifests:,} manifests and {objects:,} objects removed"
    out.print(text, markup=False, soft_wrap=True)


def restore(
    url: UrlArgument,
    seq: Annotated[
        int | None,
        typer.Option(min=0, help="The commit whose manifest to take; the newest otherwise."),
    ] = None,
    timeout: TimeoutOption = 60,
    config: ConfigOption = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Data directory (setting data_dir); it must be empty or missing."),
    ] = None,
) -> None:
    """Make a data directory of a backup: every object is checked against its checksum, then the
    directory as `streamd verify` does."""
    from streamd.maintenance import damage_outside_the_log
    from streamd.store.restore import check_free, choose
    from streamd.store.restore import restore as make
    from streamd.store.store import Store

    settings = settings_of(config, data_dir)
    check_free(settings.data_dir)
    store = Store(url, timeout)
    manifest = choose(store, seq)

    def damage(folder: Path) -> list[str]:
        line.begin("checking what was restored")
        return list(damage_outside_the_log(settings.model_copy(update={"data_dir": folder})))

    with ProgressLine(err, f"restoring from {store.shown}", "bytes") as line:
        make(store, manifest, settings.data_dir, line.at, damage)
    out.print(
        f"{settings.data_dir} restored to commit {manifest.seq:,}: {len(manifest.files):,} files, "
        f"{len(manifest.versions):,} versions; every checksum holds",
        markup=False,
        soft_wrap=True,
    )
