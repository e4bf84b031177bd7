"""The commands on a data directory and its copies: `streamd verify`, `backup` and `restore`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.errors import SettingsError, StreamdError
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings
from streamd.telemetry.progress import ProgressLine

UrlArgument = Annotated[
    str,
    typer.Argument(
        help="The store: file:///backups/taxi, s3://bucket/folder, gs://..., abfs://..."
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(min=1, help="Seconds for all tries of one object, if the store fails.")
]


def verify(
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            help="Search for this deleted key instead; @FILE for one a line. May be given several "
            "times."
        ),
    ] = None,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Check every committed byte of the log, and all versions and stored state, against their
    checksums; or search for deleted keys."""
    settings = settings_of(config, data_dir)
    if not (settings.data_dir / "published").exists():
        raise StreamdError(f"{settings.data_dir} holds no log.", "set --data-dir.")
    raise typer.Exit(_verify_deletes(settings, deleted) if deleted else _verify_all(settings))


def _verify_all(settings: Settings) -> int:
    """Check everything against its checksums. Returns: exit status, 1 if something is damaged."""
    from streamd.cli.maintenance import damage_outside_the_log
    from streamd.eventlog.recovery import AFTER_DAMAGE
    from streamd.eventlog.upkeep.verify import verify_log

    with ProgressLine(err, "checking what was committed", "pieces") as line:
        commits, damage = verify_log(settings.data_dir, line.at)
        line.begin("checking versions and stored state")
        other_damage = list(damage_outside_the_log(settings))

    # Damage goes to stderr, a line each, the counts to stdout.
    for text in (*(f"{d.path} {d.extent} (commit {d.seq})" for d in damage), *other_damage):
        err.print(f"damaged: {text}", markup=False, soft_wrap=True)
    if damage:
        err.print(f"Operator action: {AFTER_DAMAGE}", markup=False, soft_wrap=True)
    out.print(
        f"{count_noun(commits, 'commit')} checked, {len(damage)} damaged; "
        f"{len(other_damage)} damaged outside the log"
    )
    return 1 if damage or other_damage else 0


def _verify_deletes(settings: Settings, given: list[str]) -> int:
    """Search for deleted keys. Returns: exit status, 1 if one was found, or if an erasure on this
    directory is still open."""
    from streamd.cli.erasing import copies_elsewhere, open_erasures
    from streamd.cli.proof import (
        print_finding,
        print_snapshots,
        prove_erasure,
    )
    from streamd.store.deleted_keys import read_keys
    from streamd.store.erasure import candidates, schema_of_log

    # A text may name several keys; the log must hold none of them.
    texts = read_keys(given)
    schema = schema_of_log(settings.data_dir)
    keys = [candidates(text, schema) for text in texts]
    with ProgressLine(err, "looking keys up by type", "keys") as line:
        found, summary = prove_erasure(settings, texts, keys, line, partial(print_finding, line))
    held = print_snapshots(settings.data_dir)
    # Without a key left, an open erasure may still have to remove the node's edges and features.
    pending = open_erasures(settings)
    for reason in pending:
        err.print(f"pending: {reason}", soft_wrap=True, markup=False, highlight=False)
    text = f"{summary}{held}{'; an erasure is pending' if pending else ''}"
    text += f". {copies_elsewhere(settings, texts)}"
    out.print(text, soft_wrap=True, markup=False, highlight=False)
    return 1 if found or held or pending else 0


def backup(
    url: UrlArgument,
    keep: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of manifests to keep, the newest; others, and objects that only they "
            "name, are removed. 0 keeps all.",
        ),
    ] = 0,
    timeout: TimeoutOption = 60,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Back up a data directory to a store, also while the daemon runs: only objects that the store
    lacks are sent, and the manifest is sent last."""
    from streamd.store.objects import Store
    from streamd.store.sweep import sweep_store
    from streamd.store.upload import upload

    settings = settings_of(config, data_dir)
    store = Store(url, timeout)
    with ProgressLine(err, f"backing up to {store.shown}", "bytes") as line:
        done = upload(settings.data_dir, store, line.at)
    text = (
        f"{done.manifest.name} written: commit {done.manifest.seq:,}, "
        f"{count_noun(done.objects, 'object')} and {count_noun(done.num_bytes, 'byte')} sent, "
        "the rest was there"
    )
    if keep:
        # Only after the upload: a failed one must not cost an older backup.
        manifests, objects = sweep_store(store, keep)
        text += f"; {count_noun(manifests, 'manifest')} and {count_noun(objects, 'object')} removed"
    out.print(text, markup=False, soft_wrap=True)


def restore(
    url: Annotated[
        str,
        typer.Argument(
            help="The store, as for backup; or the data directory of another machine, as a path."
        ),
    ],
    seq: Annotated[
        int | None,
        typer.Option(min=0, help="Commit of the manifest to restore; the newest otherwise."),
    ] = None,
    timeout: TimeoutOption = 60,
    config: ConfigOption = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Data directory (setting data_dir); it must be empty or missing."),
    ] = None,
) -> None:
    """Restore a data directory from a backup, or copy another data directory. All data read is
    checked against its checksums, and then the new directory as `streamd verify` does."""
    from streamd.cli.maintenance import damage_outside_the_log
    from streamd.store.directory import copy_directory, directory_at
    from streamd.store.objects import Store
    from streamd.store.restore import check_free, choose
    from streamd.store.restore import restore as make

    settings = settings_of(config, data_dir)
    check_free(settings.data_dir)
    source = directory_at(url)

    def damage(folder: Path) -> list[str]:
        line.begin("checking what was restored")
        return list(damage_outside_the_log(settings.model_copy(update={"data_dir": folder})))

    if source is not None:
        if seq is not None:
            raise SettingsError(
                f"{source} is a data directory: only its newest commit can be copied.",
                "leave out --seq.",
            )
        with ProgressLine(err, f"copying {source}", "bytes") as line:
            state = copy_directory(source, settings.data_dir, line.at, damage)
        text = f"{settings.data_dir} made of {source} at commit {state.seq:,}; every checksum holds"
        out.print(text, markup=False, soft_wrap=True)
        return

    store = Store(url, timeout)
    manifest = choose(store, seq)
    with ProgressLine(err, f"restoring from {store.shown}", "bytes") as line:
        make(store, manifest, settings.data_dir, line.at, damage)
    out.print(
        f"{settings.data_dir} restored to commit {manifest.seq:,}: "
        f"{count_noun(len(manifest.files), 'file')}, "
        f"{count_noun(len(manifest.versions), 'version')}; "
        "every checksum holds",
        markup=False,
        soft_wrap=True,
    )
