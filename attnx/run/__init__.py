"""Runs of a model: plain, encoder-decoder, generating, in batches; and what their arrays are checked against."""
