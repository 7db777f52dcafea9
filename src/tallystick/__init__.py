"""Vertical federated learning that people can put to work and trust."""
