"""AUC and curves under label differential privacy: mechanisms, their protocols, and the release that picks among them."""
