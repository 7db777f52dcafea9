"""A guarantee as data: DP events and how they add up, the ledger, noise for releases, and sums that hide their terms."""
