"""Completion of commands and options, asked of the shells themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STREAMD = Path(sys.executable).parent / "streamd"
PROGRAMS = {
    # Each shell is asked for what it would offer behind "streamd back" and "streamd backtest --fo".
    "bash": """
        source <(_STREAMD_COMPLETE=source_bash streamd)
        for words in "streamd back" "streamd backtest --fo"; do
          COMP_WORDS=($words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
          _streamd_completion streamd "${COMP_WORDS[-1]}"; printf '%s\\n' "${COMPREPLY[@]}"
        done""",
    "zsh": """
        autoload -Uz compinit && compinit -u -d "$HOME/.zcompdump"
        eval "$(_STREAMD_COMPLETE=source_zsh streamd)"
        # What the completion function would hand to the line editor, which a script does not have.
        _arguments() { local all="${@[-1]}"; print -r -- "$all" }
        for line in "streamd back" "streamd backtest --fo"; do
          words=(${=line}); CURRENT=${#words}; _streamd_completion
        done
        [[ ${_comps[streamd]} == _streamd_completion ]] && echo registered""",
    "fish": """
        _STREAMD_COMPLETE=source_fish streamd | source
        complete --do-complete "streamd back"; complete --do-complete "streamd backtest --fo" """,
}


@pytest.mark.parametrize("shell", PROGRAMS)
def test_a_shell_completes_commands_and_options(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    env = {"HOME": str(tmp_path), "PATH": f"{STREAMD.parent}:{os.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run([shell, "-c", PROGRAMS[shell]], capture_output=True, text=True, env=env, timeout=120)
    assert "backtest" in done.stdout and "backup" in done.stdout and "--format" in done.stdout, done.stdout + done.stderr
    assert "deadletter" not in done.stdout
    assert shell != "zsh" or "registered" in done.stdout
