"""Build plain nn.Modules: bottom models before the cut, top models after it.

A user's own module is loaded by its import path, ``package.module:Class``. A bottom is called with its party's FeatureShape, a
top with the joined cut width and the number of outputs. A bottom states its output's ``width``.
"""
