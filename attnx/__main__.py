"""`python -m attnx`, and the `attnx` script."""

import os
import signal


def main() -> None:
    """Run the command line; an interrupt before there is anything to tidy up ends the process at once and quietly."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from attnx.cli.process import main as begin

    begin()


if __name__ == "__main__":
    main()
