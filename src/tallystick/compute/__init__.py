"""Independent work as tasks: a named function, bytes in and bytes out, on processes of this machine or on a Ray cluster.

An engine runs below one party, never between parties: it changes no protocol, no message and no guarantee. Whoever runs the
engine's machines sees what the tasks see, so they are the party's own.
"""
