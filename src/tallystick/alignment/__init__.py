"""Who is in both tables: private alignments, one function per role over a channel."""
