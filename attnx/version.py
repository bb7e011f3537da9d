"""The version of attnx."""

__version__ = "0.1.0"
