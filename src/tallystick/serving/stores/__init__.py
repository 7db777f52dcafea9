"""Where a side that serves finds a row by its key: one object per kind of store, a file each."""
