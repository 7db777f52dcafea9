"""Find a row by its key, at a side that serves: one object per kind of store, a file each."""
