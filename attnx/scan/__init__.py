"""A corpus, measured text by text into one Parquet file: in parts, here or on a cluster."""
