"""Write what a run came to for TensorBoard and MLflow, beside the report; off unless the party file names one."""
