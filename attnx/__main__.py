"""`python -m attnx`."""

from attnx.cli import main

if __name__ == "__main__":
    main()
