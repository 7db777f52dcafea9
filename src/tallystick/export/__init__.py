"""Export a party's own half of a trained network for other programs: ONNX, safetensors, and a card that describes it."""
