"""Build a party's modules as the contract says, the same from the same public seed or the same secret."""

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
    """Build a party's bottom model. Its ``width`` is the cut width D, its last layer's or ``cut_width`` in its place.

    ``name`` tells several of one party apart.

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
    """Build the label party's share of the network, for the cut widths that the feature parties announced.

    Where several rows of a feature party are linked to one, ``candidates`` says how many, per feature party.
    """
    if candidates and own is not None:
        own = replace(own, screened=False)  # a link reads own columns too
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
    """Build the top model as ``build_label_model`` does if rows are linked one to one: whoever has the contract can."""
    with seeded(seed, f"{party}/top"):
        above = model.hidden[model.cut_after :]
        return _top(model, sum(cut_widths) + own_width, hidden=above, outputs=outputs, members=model.ensemble).eval()


@dataclass(frozen=True, kw_only=True)
class BranchParts:
    """Makes the modules of a label party's model that has several branches, each from a seed of its own name.

    Args:
        model: the contract's network.
        party: the label party's name.
        own: its columns.
        cut_width: of all feature parties together.
        outputs: 1, or the number of classes or levels.
        label_width: of a label as a condition, if it is not the outputs: a number with several levels is one number.
        seed: the contract's, or the party's secret.
    """

    model: NetworkModel
    party: str
    own: FeatureShape
    cut_width: int
    outputs: int
    label_width: int | None = None
    seed: Seed = field(repr=False)

    def bottom(self, name: str = "") -> nn.Module:
        """Build a bottom model of the own columns. The one without a name is that of ``build_label_model``."""
        return build_bottom(self.model, self.party, self.own, seed=self.seed, name=name)

    def top(self, width: int, name: str = "top") -> nn.Module:
        """Build a top model over this many inputs."""
        with seeded(self.seed, f"{self.party}/{name}"):
            return _top(self.model, width, hidden=self.model.hidden[self.model.cut_after :], outputs=self.outputs)

    def joint(self, name: str = "") -> OwnColumnsModel:
        """Build a label model over the cut and a bottom of its own."""
        bottom = self.bottom(name)
        return OwnColumnsModel(self.top(self.cut_width + width_of(bottom), f"{name}/top" if name else "top"), bottom=bottom)

    def alone(self, name: str) -> OwnColumnsModel:
        """Build a label model over the own columns alone."""
        bottom = self.bottom(name)
        return OwnColumnsModel(self.top(width_of(bottom), f"{name}/top"), bottom=bottom)


def _top(model: NetworkModel, width: int, *, hidden: Sequence[int], outputs: int, members: int = 1) -> nn.Module:
    """Build the built-in top or the user's, which a few rows try. Raises ConfigError if it does not give (rows, outputs)."""
    if members > 1:  # the contract has layers for them, and no top of its own
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
    """Raise ConfigError, naming ``what``, if a bottom of a user's own does not give (rows, width) floats for a few rows."""
    with seeded(0, what), torch.no_grad():
        cut_BD = _made(bottom.eval(), what, features)
    bottom.train()
    _check_output(cut_BD, what, rows=len(features), width=width_of(bottom))


def try_top(top: nn.Module, width: int, *, outputs: int, what: str) -> None:
    """Raise ConfigError, naming ``what``, if a top of a user's own does not give a logit per output for joined cuts this wide."""
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
    """Raise ConfigError if a row's embedding depends on its batch's other rows, which the defence ``claim`` does not cover."""
    what = f"model.bottoms.{party} = {path}"
    _check_rows_apart(bottom, lambda index_B: _made(bottom, what, features.rows(index_B)), len(features), what, claim)


def check_top_rows(model: NetworkModel, *, outputs: int, claim: str) -> None:
    """Raise ConfigError if a user's top model mixes rows, so that a row's label is in the gradients of others.

    The top is tried at the width of built-in bottoms, on values drawn at random.
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
    """Put another row in each row's place, and compare what comes out for the others, in training and not."""
    for training in (True, False):
        module.train(training)
        for changed in range(rows):
            index_B = torch.arange(rows)
            with seeded(0, "rows"), torch.no_grad():  # the same draws of dropout both times
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
    """Call a user's own code. Whatever it raises is a ConfigError that names it."""
    try:
        return call(*arguments)
    except Exception as error:
        raise ConfigError(f"{what}: failed with {type(error).__name__}: {str(error)[:300]}; mend the module") from error


_one_at_a_time = threading.Lock()


@contextmanager
def seeded(seed: Seed, name: str) -> Iterator[None]:
    """Lend PyTorch's global generator, by which modules are initialised, a state of (seed, name), then put it back.

    A secret fills the whole state: of a number PyTorch keeps 32 bits, which a peer that sees embeddings could try one by one.
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
    except Exception as error:  # it is the user's own code that runs
        raise ConfigError(
            f"{key} = {path}: cannot be imported ({type(error).__name__}: {error}); write it as package.module:Class, "
            "and have the module on Python's path here"
        ) from error
    if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):
        raise ConfigError(f"{key} = {path}: is not a subclass of torch.nn.Module")
    return module_class
