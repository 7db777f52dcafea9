"""Monitor a model in use by what one party sees alone, compared with training. Nothing crosses."""
