"""One party's run of a contract: handshake, alignment, training, evaluation, report."""
