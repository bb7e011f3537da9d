"""The command line: argv to exit code. The app, one file a command, options, writing to the terminal."""
