"""Plain nn.Modules: bottom models before the cut, top models after it."""
