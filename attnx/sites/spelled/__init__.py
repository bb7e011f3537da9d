"""Attention spelled out in plain operators."""
