"""Send the data that crosses the cut of a split network: embeddings forward, gradients back."""
