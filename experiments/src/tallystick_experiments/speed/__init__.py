"""Speed, and that it costs no bit."""
