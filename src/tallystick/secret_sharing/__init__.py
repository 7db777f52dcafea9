"""Train a linear head on additive shares of several parties' columns and one party's labels, with a helper who sees neither."""
