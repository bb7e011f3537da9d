"""Adds outputs and reductions to a graph."""
