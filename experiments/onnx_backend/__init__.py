"""Run ONNX's backend tests."""
