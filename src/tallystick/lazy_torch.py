"""Load PyTorch when it is first used, so that a process that only aligns tables neither waits for it nor needs it.

A module takes ``torch``, and the names for its annotations, from here if only some of its callers compute with it. A module that
always computes imports PyTorch itself.
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
        """Give PyTorch's names, and load it for the first one."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sys.modules.get("torch") or load_torch(), name)

    torch = _Torch("torch")

    class Tensor:
        """Replace PyTorch's class in annotations."""

    class Generator:
        """Replace PyTorch's class in annotations."""


def load_torch() -> ModuleType:
    """Import PyTorch. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(NO_TORCH) from None
