"""Exchange embeddings under a contract without cut gradients: each row's embedding crosses once, and then the sessions end.

Shapes: N positions, R rows of a feature party, D cut width.

    feature party   bottom model from its own secret -> sends an embedding per row -> closes the session
    label party     keeps the embeddings -> confirms -> closes the sessions -> trains, chooses its epoch, evaluates: alone
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tallystick.cut.cut_messages import receive_embedding, send_embedding
from tallystick.cut.forward import KeptCuts, Part, PassObserver
from tallystick.dataset.dataset import Dataset
from tallystick.evaluation.evaluation_messages import Finished, receive_finished
from tallystick.job.job import Job
from tallystick.models.build import width_of
from tallystick.run_folder.embedding_charge import EmbeddingCharge
from tallystick.run_folder.folder import ARRIVED
from tallystick.training.plan import Batch
from tallystick.training.step import CutObserver


def parts_once(job: Job, dataset: Dataset, *, trains: bool) -> dict[Part, Tensor]:
    """Return the positions, by part of the split, whose rows are embedded. They are the same at every party."""
    parts: dict[Part, Tensor] = {"training": dataset.train_N} if trains else {}
    if trains or ("evaluation" in job.phases and job.contract.measures_columns):
        parts["validation"] = dataset.validation_N
    if "evaluation" in job.phases:
        parts["test"] = dataset.test_N
    return {part: index_N for part, index_N in parts.items() if len(index_N)}


def receive_once(job: Job, dataset: Dataset, widths: Sequence[int], *, trains: bool) -> list[KeptCuts]:
    """Receive every feature party's embeddings, as the label party, confirm that their run is finished, and close the sessions.

    Nothing is sent after that, so no message's content or time depends on the training. The run folder notes that the
    embeddings have arrived. Other parties learn nothing else about the run later.
    """
    parts = parts_once(job, dataset, trains=trains)
    cuts = []
    for peer, (channel, width) in enumerate(zip(job.feature_channels, widths, strict=True)):
        numbers_R, batches = _rows_once(job, dataset, parts, peer)
        embedding_RD = torch.empty(len(numbers_R), width, device=numbers_R.device)
        part = 0
        for number, rows_B in enumerate(batches):
            embedding_RD[part : part + len(rows_B)] = receive_embedding(channel, number, len(rows_B), width)
            part += len(rows_B)
        cuts.append(_kept(dataset, peer, numbers_R, embedding_RD))
    job.folder.note(ARRIVED, {"rows": [len(each.numbers_R) for each in cuts]})
    if "evaluation" in job.phases:
        for channel in job.feature_channels:
            channel.send(Finished(rows=len(parts.get("test", ()))))
    job.leave()
    return cuts


def send_once(
    job: Job,
    bottom: nn.Module,
    dataset: Dataset,
    *,
    trains: bool,
    observer: CutObserver | None,
    passes: PassObserver | None,
    run_id: str,
) -> Finished:
    """Embed and send each row once, as a feature party, wait for the confirmation, and close the session.

    Threat model: an honest-but-curious label party. It sees one embedding of each row, which has no formal guarantee without a
    defence of columns. This party receives nothing that depends on a label: neither content, nor time, nor size.
    """
    channel = job.channels[job.contract.label_party]
    parts = parts_once(job, dataset, trains=trains)
    charge = EmbeddingCharge.of(job.contract, job.party, job.folder, what=f"{job.contract.name}, run {run_id}")
    for part in parts:
        charge(part, 1)
    numbers_R, batches = _rows_once(job, dataset, parts, 0)
    bottom.eval()
    sent_BD = []
    with torch.no_grad():
        for number, rows_B in enumerate(batches):
            sent_BD.append(bottom(dataset.columns_of(rows_B)))
            send_embedding(channel, number, sent_BD[-1])
    bottom.train()
    embedding_RD = torch.cat(sent_BD) if sent_BD else torch.empty(0, width_of(bottom))
    cuts = _kept(dataset, 0, numbers_R, embedding_RD)
    if observer is not None and trains:
        # record for the audit of columns what crossed for the training rows: one epoch, without gradients
        for number, index_B in enumerate(torch.split(dataset.train_N, 1024)):
            cut_RD = cuts(number, index_B)
            observer.crossed(Batch(step=number + 1, epoch=0, number=number, index_B=index_B), cut_RD, torch.zeros_like(cut_RD))
        observer.epoch_ended(0)
    if passes is not None:
        for part, index_N in parts.items():
            if part != "training":
                passes.sent(part, index_N, cuts(0, index_N))
                passes.pass_ended(part)
        passes.epoch_ended()
    finished = Finished(rows=0)
    if "evaluation" in job.phases:
        finished = receive_finished(channel, rows=len(parts.get("test", ())), epsilon=None)
    job.leave()
    return finished


def _rows_once(job: Job, dataset: Dataset, parts: dict[Part, Tensor], peer: int) -> tuple[Tensor, Sequence[Tensor]]:
    """Return the rows of a feature party that cross, in ascending order, and the same rows in batches."""
    positions_N = torch.cat([*parts.values(), torch.empty(0, dtype=torch.int64, device=dataset.train_N.device)])
    numbers_R = torch.unique(dataset.cut_numbers(positions_N, peer))
    size = dataset.resolved(job.contract.training).batch_size
    return numbers_R, torch.split(numbers_R, size) if len(numbers_R) else ()


def _kept(dataset: Dataset, peer: int, numbers_R: Tensor, embedding_RD: Tensor) -> KeptCuts:
    return KeptCuts(numbers_R=numbers_R, embedding_RD=embedding_RD, numbers=partial(dataset.cut_numbers, peer=peer))
