"""A linear head trained on additive shares: several parties' columns, one's labels, and a helper who sees neither."""
