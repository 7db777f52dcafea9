"""Keep what one party holds: its run folder, its part of the trained network, its recorded view and its privacy ledger."""
