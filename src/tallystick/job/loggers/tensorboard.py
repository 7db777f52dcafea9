"""TensorBoard: a folder of events per run."""

from dataclasses import dataclass
from pathlib import Path

from tallystick.job.loggers.facts import Facts, logged_name


@dataclass(frozen=True)
class TensorBoardLogger:
    """Writes events into a folder of the run's own."""

    folder: Path

    def __call__(self, facts: Facts) -> None:
        """Write curves by epoch, figures at step 0, and what was run as text."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder)) as writer:
            for name, epoch, value in facts.curves:
                writer.add_scalar(logged_name(name), value, epoch)
            for name, value in facts.figures.items():
                writer.add_scalar(logged_name(name), value, 0)
            text_values = {"run": facts.run, "contract name": facts.name, **facts.settings}
            writer.add_text("run", "\n".join(f"- {name}: {value}" for name, value in text_values.items()))
