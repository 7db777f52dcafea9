"""Connect two parties: a channel, its messages, and the sessions and links below it."""
