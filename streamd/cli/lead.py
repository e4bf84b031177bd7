"""The command `streamd lead`."""

import time
from typing import Annotated

import typer

from streamd.cli.options import ConfigOption, DataOption, err, out, settings_of
from streamd.errors import SettingsError, StreamdError
from streamd.number_texts import count_noun, span
from streamd.settings.loading import Settings
from streamd.telemetry.heartbeat import Beat, read_beat
from streamd.telemetry.progress import ProgressLine

POLL_SECONDS = 0.1
"""Pause between two reads of ingest's heartbeat, which is written every 0.2 s."""


def lead(
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds to wait until this standby leads.")
    ] = 60,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Let this standby take the lead from the machine that leads, for example before that one is
    stopped. Exit status 1 if it does not lead in time."""
    from streamd.replica.leader.leading import ask_to_lead, withdraw

    settings = settings_of(config, data_dir)
    _check_standby(settings)
    begun = time.monotonic()
    beat = _ingest_of(settings)
    if not beat.detail.get("leading"):
        ask_to_lead(settings.data_dir, wait)
        try:
            with ProgressLine(err, "taking the lead", "leads") as line:
                while not (beat := _ingest_of(settings)).detail.get("leading"):
                    if time.monotonic() - begun >= wait:
                        line.leave()
                        _print_late(beat, wait)
                        raise typer.Exit(1)
                    line.begin(_describe(beat))
                    time.sleep(POLL_SECONDS)
        finally:
            withdraw(settings.data_dir)
    seconds = time.monotonic() - begun
    out.print(f"leads in term {beat.detail['term']} after {seconds:.1f} s", soft_wrap=True)


def _check_standby(settings: Settings) -> None:
    """Check that this machine is a standby, which may lead. Raises: SettingsError."""
    log = settings.log
    if not log.name:
        raise SettingsError("log.name is not set: this machine always leads.", "none is needed.")
    if log.member == "leader":
        raise SettingsError(
            "log.member is leader: this machine leads whenever it runs.",
            "set log.member to standby on each machine that may lead.",
        )
    if log.member == "replica":
        raise SettingsError(
            "log.member is replica: this machine never leads.",
            "run it on a standby, or set log.member to standby here and restart.",
        )


def _ingest_of(settings: Settings) -> Beat:
    """Read the heartbeat of this machine's ingest. Raises: StreamdError if ingest does not run."""
    beat = read_beat(settings.data_dir, "ingest")
    # Only a running ingest can execute the request.
    if beat is None or not beat.alive:
        raise StreamdError(
            f"No ingest runs on {settings.data_dir}, and only ingest can lead.",
            "start streamd here, or set --data-dir.",
        )
    return beat


def _describe(beat: Beat) -> str:
    why = beat.detail.get("why") or beat.detail.get("cannot_lead")
    behind = beat.detail.get("lag_records")
    return f"ingest is {beat.state}" + (
        f" ({why})" if why else f", {count_noun(behind, 'record')} behind" if behind else ""
    )


def _print_late(beat: Beat, seconds: float) -> None:
    err.print(
        f"This standby does not lead after {span(seconds)}: {_describe(beat)}. The request is "
        "withdrawn, and the previous leader continues.",
        markup=False,
        soft_wrap=True,
    )
