"""The program `streamd`, which is also `python -m streamd`."""

from streamd.init_process import leave_init


def main() -> None:
    """Run the command line, in a container as a child of process 1."""
    leave_init()
    # Process 1 stays small: it loads nothing of this.
    from streamd.cli.main import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
