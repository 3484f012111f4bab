"""Trained models as graphs for other programs: ONNX, torch.export and AOTInductor."""
