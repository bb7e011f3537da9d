"""Writes outputs and reductions into a graph."""
