"""Trained models as graphs for other programs: TorchScript, torch.export and ONNX."""
