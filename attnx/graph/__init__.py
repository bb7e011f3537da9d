"""Load, index and walk an ONNX graph."""
