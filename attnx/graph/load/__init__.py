"""An .onnx file to a flat, checked graph."""
