"""The data sets of the experiments, each read in one place; who holds which columns is said with them."""
