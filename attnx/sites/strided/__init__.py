"""Attention over overlapping views of memory (Longformer with as_strided): rows are proved cell by cell."""
