"""Share the rows of each training batch between several processes of one party."""
