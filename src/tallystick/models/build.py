"""Build a party's modules as the contract says. The same public seed or secret gives the same modules."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tallystick.config.sections import NetworkModel
from tallystick.errors import ConfigError
from tallystick.models.ensemble import EnsembleTop
from tallystick.models.similarity.model import LinkModel, SimilarityLabelModel
from tallystick.models.split import LabelModel, OwnColumnsModel
from tallystick.models.tabular import TabularBottom, TabularTop, Wide
from tallystick.privacy.randomness import Seed, generator_of
from tallystick.tables.features import Features, FeatureShape

T = TypeVar("T")


def build_bottom(
    model: NetworkModel, party: str, shape: FeatureShape, *, seed: Seed, name: str = "", cut_width: int | None = None
) -> nn.Module:
    """Build a party's bottom model. Its ``width`` is the cut width D: ``cut_width``, or that of its last layer.

    ``name`` distinguishes several models of one party.

    Raises ConfigError if a user's module cannot be imported or built, or does not state its width.
    """
    path = model.bottoms.get(party)
    with seeded(seed, f"{party}/{name}" if name else party):
        if path is None:
            hidden = model.hidden[: model.cut_after]
            hidden = (*hidden[:-1], cut_width) if cut_width is not None else hidden
            return TabularBottom(
                shape,
                embedding_width=model.embedding_width,
                hidden=hidden,
                embedding_scale=model.embedding_scale,
                normalized=model.normalization == "batch",
            )
        bottom = _made(_user_module(path, f"model.bottoms.{party}"), f"model.bottoms.{party} = {path}", shape)
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
    seed: Seed,
    candidates: Sequence[int] = (),
) -> LabelModel:
    """Build the label party's part of the network, for the cut widths that the feature parties announced.

    If several rows of a feature party are linked to one row, ``candidates`` is their number, per feature party.
    """
    if candidates and own is not None:
        own = replace(own, screened=False)  # links read own columns as well
    bottom = build_bottom(model, party, own, seed=seed) if own is not None else None
    own_width = width_of(bottom) if bottom is not None else 0
    above = model.hidden[model.cut_after :]
    with seeded(seed, f"{party}/top"):
        if candidates:
            links = [
                LinkModel(own=own_width, cut=cut, links=count, hidden=above, settings=model.merge)
                for cut, count in zip(cut_widths, candidates, strict=True)
            ]
            own_width, above = own_width if model.merge.own_columns else 0, model.merge.top
            cut_widths = [link.width for link in links]
        top = _top(model, sum(cut_widths) + own_width, hidden=above, outputs=outputs, members=model.ensemble)
        has_columns = own is not None and (own.numeric or own.cardinalities)  # the wide part reads no sequences
        wide = Wide(own, outputs=outputs) if model.wide and own is not None and has_columns else None
    if candidates:
        return SimilarityLabelModel(links, top, bottom=bottom, wide=wide, own_columns=model.merge.own_columns)
    return LabelModel(top, bottom=bottom, wide=wide)


def top_at_start(
    model: NetworkModel, party: str, cut_widths: Sequence[int], *, own_width: int, outputs: int, seed: int
) -> nn.Module:
    """Build the top model as ``build_label_model`` does for rows linked one to one. Anyone with the contract can do this."""
    with seeded(seed, f"{party}/top"):
        above = model.hidden[model.cut_after :]
        return _top(model, sum(cut_widths) + own_width, hidden=above, outputs=outputs, members=model.ensemble).eval()


@dataclass(frozen=True, kw_only=True)
class BranchParts:
    """A maker of the modules for a label party's model with several branches. Each module's seed depends on its name.

    Args:
        model: the contract's network.
        party: the label party's name.
        own: its columns.
        cut_width: cut width of all feature parties together.
        outputs: 1, or the number of classes or levels.
        label_width: width of a label as a condition, if it is not ``outputs``: a number with several levels is one number.
        seed: the contract's seed, or the party's secret.
    """

    model: NetworkModel
    party: str
    own: FeatureShape
    cut_width: int
    outputs: int
    label_width: int | None = None
    seed: Seed = field(repr=False)

    def bottom(self, name: str = "") -> nn.Module:
        """Build a bottom model of the own columns. Without a name it is that of ``build_label_model``."""
        return build_bottom(self.model, self.party, self.own, seed=self.seed, name=name)

    def top(self, width: int, name: str = "top") -> nn.Module:
        """Build a top model over this many inputs."""
        with seeded(self.seed, f"{self.party}/{name}"):
            return _top(self.model, width, hidden=self.model.hidden[self.model.cut_after :], outputs=self.outputs)

    def joint(self, name: str = "") -> OwnColumnsModel:
        """Build a label model for the cut and a bottom of its own."""
        bottom = self.bottom(name)
        return OwnColumnsModel(self.top(self.cut_width + width_of(bottom), f"{name}/top" if name else "top"), bottom=bottom)

    def alone(self, name: str) -> OwnColumnsModel:
        """Build a label model for the own columns alone."""
        bottom = self.bottom(name)
        return OwnColumnsModel(self.top(width_of(bottom), f"{name}/top"), bottom=bottom)


def _top(model: NetworkModel, width: int, *, hidden: Sequence[int], outputs: int, members: int = 1) -> nn.Module:
    """Build the built-in top or the user's, which is tried on a few rows. Raises ConfigError unless it returns (rows,
    outputs).
    """
    if members > 1:  # then the contract has layers, and no top of its own
        return EnsembleTop(width, hidden=hidden, outputs=outputs, members=members)
    if model.top is None:
        return TabularTop(width, hidden=hidden, outputs=outputs)
    what = f"model.top = {model.top}"
    top = _made(_user_module(model.top, "model.top"), what, width, outputs)
    few_BD = torch.randn(TRIED_ROWS, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _check_output(_made(lambda: top.eval()(few_BD), what), what, rows=TRIED_ROWS, width=outputs)
    return top.train()


def check_modules(model: NetworkModel, party: str, *, top: bool) -> None:
    """Raise ConfigError if a module that the contract names for this party (and, if asked, the top) cannot be imported."""
    if party in model.bottoms:
        _user_module(model.bottoms[party], f"model.bottoms.{party}")
    if top and model.top is not None:
        _user_module(model.top, "model.top")


def try_bottom(bottom: nn.Module, features: Features, *, what: str) -> None:
    """Raise ConfigError, naming ``what``, if a user's bottom does not return (rows, width) floats for a few rows."""
    with seeded(0, what), torch.no_grad():
        cut_BD = _made(bottom.eval(), what, features)
    bottom.train()
    _check_output(cut_BD, what, rows=len(features), width=width_of(bottom))


def try_top(top: nn.Module, width: int, *, outputs: int, what: str) -> None:
    """Raise ConfigError, naming ``what``, if a user's top does not return a logit per output for joined cuts of this width."""
    with seeded(0, what), torch.no_grad():
        output = _made(top.eval(), what, torch.randn(TRIED_ROWS, width))
    top.train()
    if isinstance(output, Tensor) and output.ndim == 1 and outputs == 1:
        output = output[:, None]
    _check_output(output, what, rows=TRIED_ROWS, width=outputs)


def _check_output(output: object, what: str, *, rows: int, width: int) -> None:
    if not isinstance(output, Tensor) or tuple(output.shape) != (rows, width) or output.dtype != torch.float32:
        got = f"{output.dtype} of {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(f"{what}: gives {got} for {rows} rows; expected float32 of {(rows, width)}")


def check_bottom_rows(bottom: nn.Module, features: Features, *, path: str, party: str, claim: str) -> None:
    """Raise ConfigError if a row's embedding depends on other rows of its batch, which the defence ``claim`` does not cover."""
    what = f"model.bottoms.{party} = {path}"
    _check_rows_apart(bottom, lambda index_B: _made(bottom, what, features.rows(index_B)), len(features), what, claim)


def check_top_rows(model: NetworkModel, *, outputs: int, claim: str) -> None:
    """Raise ConfigError if a user's top model mixes rows, so that gradients of other rows depend on a row's label.

    The top is tried with the width of built-in bottoms, on random values.
    """
    if model.top is None:
        return
    width, what = model.built_in_cut_width, f"model.top = {model.top}"
    with seeded(0, "top"):
        top = _top(model, width, hidden=(), outputs=outputs)
        cut_BD = torch.randn(TRIED_ROWS, width)
    _check_rows_apart(top, lambda index_B: _made(top, what, cut_BD[index_B]), TRIED_ROWS, what, claim)


TRIED_ROWS = 8


def _check_rows_apart(module: nn.Module, outputs_of: Callable[[Tensor], Tensor], rows: int, what: str, claim: str) -> None:
    """Replace one row after the other, and compare the outputs for the remaining rows, in training and in evaluation."""
    for training in (True, False):
        module.train(training)
        for changed in range(rows):
            index_B = torch.arange(rows)
            with seeded(0, "rows"), torch.no_grad():  # the same dropout both times
                before_BD = outputs_of(index_B)
            index_B[changed] = (changed + 1) % rows
            with seeded(0, "rows"), torch.no_grad():
                after_BD = outputs_of(index_B)
            others_B = torch.arange(rows) != changed
            if not torch.allclose(before_BD[others_B], after_BD[others_B], rtol=1e-4, atol=1e-5):
                raise ConfigError(
                    f"{what}: {'in training ' if training else ''}what it gives for a row depends on the other rows of its "
                    f"batch, as by batch normalisation, which {claim} does not cover; normalise each row by itself (LayerNorm), "
                    "or take another defence"
                )


def _made(call: Callable[..., T], what: str, *arguments: Any) -> T:
    """Call a user's own code. Turn every error of it into a ConfigError that names the module."""
    try:
        return call(*arguments)
    except Exception as error:
        raise ConfigError(f"{what}: failed with {type(error).__name__}: {str(error)[:300]}; mend the module") from error


_one_at_a_time = threading.Lock()


@contextmanager
def seeded(seed: Seed, name: str) -> Iterator[None]:
    """Set PyTorch's global generator, which initialises modules, to a state from (seed, name), then restore it.

    A secret fills the whole state, because PyTorch keeps 32 bits of a number, which a peer with embeddings could try one by one.
    """
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        if isinstance(seed, bytes):
            torch.default_generator.set_state(generator_of(seed, name).get_state())
        else:
            mixed = torch.Generator().manual_seed(seed).initial_seed()
            for byte in name.encode():
                mixed = (mixed * 1_000_003 + byte) % (1 << 62)
            torch.default_generator.manual_seed(mixed)
        yield


def width_of(bottom: nn.Module) -> int:
    """Return the cut width that a bottom states."""
    width = bottom.width
    assert isinstance(width, int)
    return width


def _user_module(path: str, key: str) -> type[nn.Module]:
    module_name, _, class_name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module_class = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # this runs the user's own code
        raise ConfigError(
            f"{key} = {path}: cannot be imported ({type(error).__name__}: {error}); write it as package.module:Class, "
            "and have the module on Python's path here"
        ) from error
    if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):
        raise ConfigError(f"{key} = {path}: is not a subclass of torch.nn.Module")
    return module_class
