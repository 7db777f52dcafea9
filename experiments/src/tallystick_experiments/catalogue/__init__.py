"""Read the data sets of the experiments, each in one place, and say which party holds which columns."""
