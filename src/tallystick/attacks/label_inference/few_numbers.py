"""Infer targets that are numbers from a few known ones, by curves from embeddings or gradients to the target.

Shapes: N rows of the run, K known rows, F inputs, P principal components.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from tallystick.attacks.kernels import kernel_ridge
from tallystick.attacks.label_inference.first_steps import embeddings, later_gradients
from tallystick.attacks.matrix import principal_components
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError, DataError

COMPONENTS = 32
BANDWIDTHS = (1.0, 2.0, 4.0)
LEAST_KNOWN = 5


@dataclass(frozen=True, kw_only=True)
class FewNumbers:
    """Fit curves to a few rows whose number is known, and score all other rows.

    It does for numbers what ``ModelCompletion`` does for classes (Fu et al. 2022, section 4). It uses kernel ridge regression on
    the first principal components, unscaled, so that directions of large variance count most. What it finds in embeddings is
    partly the features' own power to predict the number, which exists without any training.

    Args:
        reads: each row's last embedding; or its mean gradient and the mean direction of its gradients in later epochs; or both
            side by side.
    """

    reads: Literal["embedding", "gradient", "both"]

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score rows of unknown number as one group. It draws nothing at random.

        Raises ConfigError for classes, DataError if fewer than five seen rows are known, or what is read was not recorded.
        """
        if view.classes:
            raise ConfigError(f"few numbers: the target has {view.classes} classes; use completion")
        # Take the rows for which everything was recorded, in order, and their inputs as float64
        parts = [embeddings(view)] if self.reads != "gradient" else []
        parts += [later_gradients(view)] if self.reads != "embedding" else []
        rows_N = parts[0][0]
        for others_N, _ in parts[1:]:
            rows_N = rows_N[torch.isin(rows_N, others_N)]
        parts_of_rows = [x_NF[torch.searchsorted(of_N, rows_N)].double() for of_N, x_NF in parts]
        x_NF = torch.cat(parts_of_rows, dim=1)
        number_N = view.known_numbers[rows_N] if view.known_numbers is not None else torch.full((len(rows_N),), torch.nan)
        known_N = ~number_N.isnan()
        if int(known_N.sum()) < LEAST_KNOWN:
            raise DataError(f"few numbers: {int(known_N.sum())} of the rows seen are known; expected at least {LEAST_KNOWN}")
        z_NP = principal_components(x_NF, min(COMPONENTS, x_NF.shape[1])).double()
        target_K = number_N[known_N].double()
        guess_N = kernel_ridge(z_NP[known_N], (target_K - target_K.mean())[:, None], z_NP[~known_N], bandwidths=BANDWIDTHS)[0]
        return Scores(rows=(rows_N[~known_N],), values=(guess_N,))
