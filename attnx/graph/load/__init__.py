"""From an .onnx file to a flat, checked graph."""
