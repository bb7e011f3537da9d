"""Recognises attention: fused operators, and attention spelled out in plain operators."""
