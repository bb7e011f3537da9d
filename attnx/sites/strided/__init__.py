"""Attention over overlapping views of memory (Longformer by as_strided): rows proved cell by cell."""
