"""The command line, from argv to exit code: the app, one file for each command, options, writing to the terminal."""
