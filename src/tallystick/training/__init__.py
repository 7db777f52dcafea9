"""Train one network by several parties, written per role over a channel."""
