"""PyTorch, loaded when it is first computed with: who aligns tables alone neither waits for it nor needs it installed.

A module that only some of its callers compute by takes ``torch``, and the names of annotations, from here. One that is all
computation imports PyTorch itself.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tallystick.errors import ConfigError

NO_TORCH = "PyTorch is not installed, and only an alignment does without it: pip install torch"

if TYPE_CHECKING:
    import torch as torch
    from torch import Generator as Generator
    from torch import Tensor as Tensor
else:

    class _Torch(ModuleType):
        """Give PyTorch's names."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sys.modules.get("torch") or load_torch(), name)

    torch = _Torch("torch")

    class Tensor:
        """Stand for PyTorch's class in annotations."""

    class Generator:
        """Stand for PyTorch's class in annotations."""


def load_torch() -> ModuleType:
    """Import PyTorch. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(NO_TORCH) from None
