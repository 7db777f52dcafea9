"""Use rows that only the label party has: one method per file, and the table that names them (FedAds, sections 4.1, 5.1)."""
