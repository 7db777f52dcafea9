"""The label-leakage paper's tables and figures."""
