"""Vertical federated learning that people can put to work and trust."""

from importlib.metadata import version

__version__ = version("tallystick")
