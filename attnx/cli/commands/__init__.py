"""One file for each command: options -> pipeline -> view. No arithmetic here."""
