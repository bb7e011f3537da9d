"""Fused attention operators: one file per operator, each with its decomposition."""
