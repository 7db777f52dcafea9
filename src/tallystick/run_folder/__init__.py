"""Keep one party's data of a run: its run folder, its part of the trained network, its recorded view and its privacy ledger."""
