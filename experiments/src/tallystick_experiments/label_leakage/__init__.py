"""Make the label-leakage paper's tables and figures."""
