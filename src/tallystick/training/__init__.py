"""One network trained by several parties, written per role over a channel."""
