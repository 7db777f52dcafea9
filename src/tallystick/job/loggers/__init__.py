"""What a run came to, written for TensorBoard and MLflow beside the report; off unless the party file names one."""
