"""How two parties talk: a channel, the messages on it, and the transports below it."""
