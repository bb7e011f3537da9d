"""Measure a corpus text by text into one Parquet file: in parts, on this machine or on a cluster."""
