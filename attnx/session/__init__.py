"""onnxruntime: sessions, their cache, their memory, their devices."""
