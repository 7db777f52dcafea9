"""A linear head trained on additive shares: two parties' columns, one's labels, and a helper who sees neither."""
