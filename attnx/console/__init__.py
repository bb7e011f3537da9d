"""The command line's own workings: options, what is given on it, how results are put together and written."""
