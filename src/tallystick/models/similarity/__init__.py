"""Build label models that merge several candidate rows per example: gates, merges, and the table that names them."""
