"""Vertical federated learning that people can put to work and trust."""


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: that takes a while, in which the command line could not answer to a signal."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    found = globals()[name] = version("tallystick")
    return found
