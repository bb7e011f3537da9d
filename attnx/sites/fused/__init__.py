"""Fused attention operators: one file an operator, each with its decomposition."""
