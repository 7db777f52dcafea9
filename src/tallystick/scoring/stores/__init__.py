"""Find a row by its key, at a side that serves. Each kind of store is one object in one file."""
