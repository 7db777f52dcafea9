"""Record what crossed the cut in passes without gradients, for each part of the split, in files.

Validation, test and measuring columns embed rows with weights that do not change during the pass. A row of the validation part
crosses once in each pass, which may be dozens of times. Like the sums of training (row_recorder.py) the files are readable by
their owner alone. Unlike them they continue when a run is resumed: embeddings that were sent before a crash count as sent.

Shapes: N chosen rows, B rows of a batch, V measured rows, D cut width, C measured columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tallystick.attacks.row_sums import RowSums, chosen_rows
from tallystick.cut.forward import Part
from tallystick.errors import DataError, StorageError
from tallystick.network.messages import MEBIBYTE
from tallystick.run_folder.row_recorder import RowStore, one_each
from tallystick.storage import Origin
from tallystick.training.checkpoint import read_tensors, write_tensors

PASS_ROWS, QUICK_PASS_ROWS = 2_000, 500  # greatest number of rows of each part
PASSES: tuple[Part, ...] = ("training", "validation", "test")
MOST_CONTRAST_BYTES = 64 * MEBIBYTE
CONTRAST = "shuffled.safetensors"


@dataclass(frozen=True, kw_only=True)
class PassStores:
    """Stores for what one feature party sent in passes: sums for each part, and the mean effects of shuffled columns."""

    folder: Path
    contract: str
    run_id: str
    origin: Origin

    def of(self, part: Part) -> RowStore:
        """Return the store of a part's sums."""
        return RowStore(
            folder=self.folder / part,
            contract=self.contract,
            origin=self.origin,
            run_id=self.run_id,
            received="cut_embedding",
        )

    def load(self, part: Part) -> RowSums | None:
        """Load the sums of a part, or None if nothing was recorded. Raises DataError for a damaged file, or another run's."""
        store = self.of(part)
        epochs = store.epochs()
        return store.load(epochs[-1]) if epochs else None

    def save_contrast(self, rows_N: Tensor, contrast_NCD: Tensor) -> None:
        """Keep the effects of shuffled columns."""
        facts = {"contract": self.contract, "run_id": self.run_id}
        tensors = {"rows_N": rows_N, "contrast_NCD": contrast_NCD}
        write_tensors(self.folder / CONTRAST, tensors, facts, origin=self.origin, private=True)

    def contrast(self) -> tuple[Tensor, Tensor] | None:
        """Return the rows that crossed with shuffled columns, and the mean decrease of their embeddings, or None if
        no row did.
        """
        path = self.folder / CONTRAST
        if not path.exists():
            return None
        try:
            tensors, facts = read_tensors(path, origin=self.origin)
            rows_N, contrast_NCD = tensors["rows_N"], tensors["contrast_NCD"]
            fits = len(rows_N) == len(contrast_NCD) and contrast_NCD.ndim == 3 and rows_N.dtype == torch.int64
            if facts["contract"] != self.contract or (self.run_id and facts["run_id"] != self.run_id) or not fits:
                raise DataError(f"{path}: is of another contract or run, or its tensors do not fit; run the contract again")
        except (StorageError, KeyError) as error:
            raise DataError(f"{path}: is cut short or holds no shuffled columns ({error}); run the contract again") from None
        return rows_N, contrast_NCD


@dataclass(kw_only=True)
class PassRecorder:
    """A ``PassObserver`` that keeps one look at each chosen row for each pass.

    Args:
        stores: where the sums are kept.
        sums: sums of each recorded part.
        rows: returns the rows of this party that cross for a batch's positions.
    """

    stores: PassStores
    sums: Mapping[Part, RowSums]
    rows: Callable[[Tensor], Tensor] = one_each
    _dirty: set[Part] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        stores: PassStores,
        positions: Mapping[Part, Tensor],
        *,
        width: int,
        rows: Callable[[Tensor], Tensor] = one_each,
        quick: bool = False,
        anew: bool = False,
    ) -> "PassRecorder":
        """Begin with a limited number of the rows that cross for these positions, or continue with the kept sums."""
        sums: dict[Part, RowSums] = {}
        for part, index_N in positions.items():
            if anew:
                stores.of(part).drop_from(0)
            sums_before = stores.load(part)
            if sums_before is None and len(index_N):
                numbers_N = torch.unique(rows(index_N)).cpu()
                rows_N = chosen_rows(numbers_N, most=QUICK_PASS_ROWS if quick else PASS_ROWS)
                sums_before = RowSums.zero("cut_embedding", rows_N, width)
            if sums_before is not None:
                sums[part] = sums_before
        return cls(stores=stores, sums=sums, rows=rows)

    def sent(self, part: Part, index_B: Tensor, cut_BD: Tensor) -> None:
        """Add a batch."""
        if part in self.sums:
            self.sent_rows(part, self.rows(index_B), cut_BD)

    def sent_rows(self, part: Part, rows_B: Tensor, cut_BD: Tensor) -> None:
        """Record a batch of this party's rows that was sent."""
        if part in self.sums:
            cut_BD = cut_BD.detach().cpu().float()
            self.sums[part].add(rows_B.cpu(), cut_BD, cut_BD)  # no gradient came back, and none is read
            self.sums[part].settle()  # if nothing is trained, a model in the same process may reuse this memory

    def pass_ended(self, part: Part) -> None:
        """Count a look. The weights do not change within a pass, so all its steps count as one."""
        if part not in self.sums:
            return
        sums = self.sums[part]
        sums.epoch_ended(len(sums.epochs))
        sums.looks_at_LN[-1] = 0
        self._dirty.add(part)

    def epoch_ended(self) -> None:
        """Write what was recorded since the last call."""
        for part in sorted(self._dirty):
            self.stores.of(part).save(0, self.sums[part])
        self._dirty.clear()

    def contrast(self, rows_V: Tensor, columns: int) -> "ContrastRecorder | None":
        """Begin to record shuffled columns for these rows of this party.

        Return None if the validation part was not recorded.
        """
        sums = self.sums.get("validation")
        if sums is None or not columns:
            return None
        numbers_V = rows_V.cpu()
        (place_N,) = torch.isin(numbers_V, sums.rows_N).nonzero(as_tuple=True)
        width = sums.last_ND.shape[1]
        place_N = chosen_rows(place_N, most=max(1, MOST_CONTRAST_BYTES // (4 * columns * width)))
        clean_ND = sums.last_ND[torch.searchsorted(sums.rows_N, numbers_V[place_N])]
        contrast_NCD = clean_ND[:, None].repeat(1, columns, 1)
        return ContrastRecorder(self.stores, numbers_V[place_N], place_N, len(numbers_V), contrast_NCD)


@dataclass
class ContrastRecorder:
    """A record of how much a row's embedding decreased when a column was shuffled, on average over the repeats."""

    stores: PassStores
    rows_N: Tensor
    place_N: Tensor
    measured: int
    contrast_NCD: Tensor

    def __call__(self, column: int, share: float, index_B: Tensor, cut_BD: Tensor) -> None:
        """Add a batch with this column shuffled, weighted by its share of the repeats."""
        here_V = torch.full((self.measured,), -1, dtype=torch.int64)
        here_V[self.place_N] = torch.arange(len(self.place_N))
        place_B = here_V[index_B.cpu()]
        known_B = place_B >= 0
        self.contrast_NCD[place_B[known_B], column] -= share * cut_BD.detach().cpu().float()[known_B]

    def save(self) -> None:
        """Write the recording."""
        self.stores.save_contrast(self.rows_N, self.contrast_NCD)
