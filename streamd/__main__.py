"""The program `streamd`, which is also `python -m streamd`."""

from streamd.init_process import leave_init


def main() -> None:
    """Run the command line; in a container, as a child of process 1."""
    leave_init()
    # Imported in the child only, so that process 1 stays small.
    from streamd.cli.main import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
