"""Runs a model to answer a question: what one command, or one call of the Python interface, needs."""
