"""Shapes, types and constants of every value."""
