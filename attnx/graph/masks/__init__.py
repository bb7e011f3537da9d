"""Masks evaluated on their own: causal, windows, biases."""
