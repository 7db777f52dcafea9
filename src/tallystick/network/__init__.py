"""Connect two parties: a channel, the messages on it, and the sessions and links below it."""
