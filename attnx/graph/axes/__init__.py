"""What each axis of a tensor is: batch, heads, queries, keys, features."""
