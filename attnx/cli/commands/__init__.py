"""One file a command: options -> pipeline -> view. No arithmetic here."""
