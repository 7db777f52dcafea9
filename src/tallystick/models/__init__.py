"""Plain nn.Modules: bottom models before the cut, top models after it.

A user's own module comes in by import path, ``package.module:Class``. A bottom is called with its party's
FeatureShape, a top with the joined cut width and the number of outputs; a bottom states its output's ``width``.
"""
