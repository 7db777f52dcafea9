"""Run independent work as tasks: a named function, bytes in and bytes out, on local processes or on a Ray cluster.

An engine runs below one party, never between parties: it changes no protocol, no message and no guarantee. The operator of the
engine's machines sees what the tasks see, so the machines must be the party's own.
"""
