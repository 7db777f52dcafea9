"""Audits that need no partner: of a run that is over, and of a contract that nobody has run yet."""
