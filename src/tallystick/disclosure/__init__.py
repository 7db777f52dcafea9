"""State what a contract lets leave, and what stands against it: one table for `check`, reports and pages."""
