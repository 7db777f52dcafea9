"""Make FedSim's tables and figures."""
