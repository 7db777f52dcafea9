"""Build a party's modules as the contract says, the same at every run of one seed."""

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from tallystick.config.contract import NetworkModel
from tallystick.data.features import FeatureShape
from tallystick.errors import ConfigError
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop, Wide


def build_bottom(model: NetworkModel, party: str, shape: FeatureShape, *, seed: int) -> nn.Module:
    """A party's bottom model; ``width`` of it is the cut width D.

    Raises ConfigError if a user's module cannot be imported or built, or does not state its width.
    """
    path = model.bottoms.get(party)
    with seeded(seed, party):
        if path is None:
            hidden = model.hidden[: model.cut_after]
            return TabularBottom(shape, embedding_width=model.embedding_width, hidden=hidden)
        bottom = _user_module(path, f"model.bottoms.{party}")(shape)
    if not isinstance(getattr(bottom, "width", None), int):
        raise ConfigError(f"model.bottoms.{party} = {path}: the module must state its output width as the attribute `width`")
    assert isinstance(bottom, nn.Module)
    return bottom


def build_label_model(
    model: NetworkModel,
    party: str,
    own: FeatureShape | None,
    cut_widths: Sequence[int],
    *,
    outputs: int,
    seed: int,
) -> LabelModel:
    """The label party's share of the network, for the cut widths that the feature parties announced."""
    bottom = build_bottom(model, party, own, seed=seed) if own is not None else None
    width = sum(cut_widths) + (_width(bottom) if bottom is not None else 0)
    with seeded(seed, f"{party}/top"):
        if model.top is None:
            top: nn.Module = TabularTop(width, hidden=model.hidden[model.cut_after :], outputs=outputs)
        else:
            top = _user_module(model.top, "model.top")(width, outputs)
        wide = Wide(own, outputs=outputs) if model.wide and own is not None else None
    return LabelModel(top, bottom=bottom, wide=wide)


_one_at_a_time = threading.Lock()


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """PyTorch initialises modules from its global generator: lend it a seed of (seed, name), then put it back."""
    mixed = torch.Generator().manual_seed(seed).initial_seed()
    for byte in name.encode():
        mixed = (mixed * 1_000_003 + byte) % (1 << 62)
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(mixed)
        yield


def _width(bottom: nn.Module) -> int:
    width = bottom.width
    assert isinstance(width, int)
    return width


def _user_module(path: str, key: str) -> type[nn.Module]:
    module_name, _, class_name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key} = {path}: cannot be imported ({error}); write it as package.module:Class") from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{key} = {path}: is not a subclass of torch.nn.Module")
    return found
