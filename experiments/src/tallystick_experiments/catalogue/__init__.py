"""The data sets of the experiments, each read in one place. Who holds which columns is said with them."""
