"""Methods for rows that only the label party has: one file each, and the table that names them (FedAds, sections 4.1 and 5.1)."""
