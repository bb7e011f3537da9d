"""One file a way attention is written in ONNX graphs."""
