"""The phases of a job, a file each: align, train, audit, evaluate (with importance and release), report."""
