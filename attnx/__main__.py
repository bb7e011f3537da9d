"""`python -m attnx`, and the `attnx` script."""

import signal


def main() -> None:
    """Run the command line; an interrupt before it has begun ends the process as it ends any other program."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnx.cli import main as begin

    signal.signal(signal.SIGINT, before)
    begin()


if __name__ == "__main__":
    main()
