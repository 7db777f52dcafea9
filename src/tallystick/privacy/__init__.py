"""Hold guarantees as data: DP events and their sums, the ledger, noise for releases, and sums that hide their terms."""
