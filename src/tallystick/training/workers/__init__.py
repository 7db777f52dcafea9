"""Several processes of one party that share the rows of each training batch."""
