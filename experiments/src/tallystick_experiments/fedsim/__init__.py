"""FedSim's tables and figures."""
