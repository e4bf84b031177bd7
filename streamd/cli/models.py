"""The `streamd models` commands list and show model versions, and change the champion by hand."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.cli.table_output import print_table
from streamd.clock import utc
from streamd.errors import UntakenError, VersionError
from streamd.windows.intervals import score_text

WAIT_SECONDS = 60.0
"""Maximum wait on a replica for the trainer's answer, which usually takes about a second."""
models_app = typer.Typer(
    help="Model versions: list, show, promote, rollback.", no_args_is_help=True
)


@models_app.command("list")
def models_list(config: ConfigOption = None, data_dir: DataOption = None) -> None:
    """List the versions kept, oldest first, and mark champion, shadow and versions without memory.

    MRR: over the windows that the version scored as champion, before they were learned.
    """
    from streamd.registry.registry import read_manifests
    from streamd.windows.history import HistoryReader
    from streamd.windows.version_scores import version_scores

    settings = settings_of(config, data_dir)
    registry = _registry(config, data_dir)
    last = registry.shown()
    manifests = read_manifests(registry)
    records = HistoryReader(settings.data_dir).refresh()
    scores = version_scores(records, {m.name for m in manifests})
    table = Table("version", "learned until (UTC)", "loss", "windows", "MRR", "role", box=None)
    # Champion and shadow come from the last move; manifests do not contain them.
    for m in manifests:
        mark = (
            "champion"
            if last and m.name == last.champion
            else "shadow"
            if last and m.name == last.shadow
            else ""
            if registry.is_servable(m)
            else "without memory"
        )
        # The newest version has scored no window yet.
        of_it = scores.get(m.name)
        mrr = score_text(of_it.mrr, 4) if of_it else "-"
        num = f"{of_it.num_windows:,}" if of_it else "0"
        until = utc(m.window_end_us)[:16].replace("T", " ")
        table.add_row(m.name, until, f"{m.loss:.4f}", num, mrr, mark)
    print_table(out, table)


@models_app.command("show")
def models_show(name: str, config: ConfigOption = None, data_dir: DataOption = None) -> None:
    """Print a version's manifest."""
    import msgspec

    manifest = _registry(config, data_dir).manifest(name)
    out.print_json(msgspec.json.encode(manifest).decode())


@models_app.command("promote")
def models_promote(
    name: str,
    why: Annotated[str, typer.Option(help="Reason for the journal.")] = "by hand",
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Make a version champion; the trainer continues from its weights."""
    moves = _moves(config, data_dir)
    _print_outcome(lambda: moves.promote(name, "operator", why))


@models_app.command("rollback")
def models_rollback(
    why: Annotated[str, typer.Option(help="Reason for the journal.")] = "by hand",
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Make the last proven version champion; the trainer continues from its weights."""
    moves = _moves(config, data_dir)
    _print_outcome(lambda: moves.rollback("operator", why))


def _moves(config: Path | None, data_dir: Path | None) -> Any:
    """The object that moves the champion: the registry, or one that asks the trainer if that may
    run on another machine."""
    registry = _registry(config, data_dir)
    settings = settings_of(config, data_dir)
    # Only on a follower may the trainer run on another machine.
    if not settings.log.follows:
        return registry
    from streamd.replica.move_requests import moves_by_request

    return moves_by_request(settings, registry, WAIT_SECONDS)


def _print_outcome(move: Callable[[], Any]) -> None:
    """Make a move and print its outcome; exit with status 1 if it is made only later, or if the
    trainer has not answered yet."""
    from streamd.registry.outcome import Waiting

    try:
        done = move()
    except UntakenError as error:
        if not error.request:
            raise
        text = f"queued as {error.request}: ingest makes the move with its next commit, even after "
        err.print(f"{text}a restart; do not repeat it", soft_wrap=True)
        raise typer.Exit(1) from None
    if isinstance(done, Waiting):
        text = f"asked by request {done.request}; the trainer has not answered yet"
        err.print(text, soft_wrap=True)
        raise typer.Exit(1)
    out.print(f"champion: {done.champion}")


def _registry(config: Path | None, data_dir: Path | None) -> Any:
    """Open the registry of a data directory. Raises: VersionError if the directory has no versions.

    The registry logs folders that are not versions. The lines go to stderr, because stdout is for
    the result.
    """
    import structlog

    from streamd.registry import Registry

    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    settings = settings_of(config, data_dir)

    # Check first, because opening a registry creates the folder.
    if not (settings.data_dir / "models").is_dir():
        raise VersionError(f"{settings.data_dir} holds no models.", "set --data-dir.")
    return Registry.of(settings)
