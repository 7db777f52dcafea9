"""Choose what a party's weights are drawn from before training: its own secret, or the seed that all parties know."""

from tallystick.config.contract import Contract
from tallystick.privacy.randomness import Seed
from tallystick.run_folder.folder import RunFolder


def start_of(contract: Contract, folder: RunFolder) -> Seed:
    """Return this party's secret of this run, which its folder keeps; the contract's seed if ``training.starts`` is public.

    Whoever knows a feature party's starting weights solves the columns of the first batch from its embeddings
    (``attacks/feature_inference/known_initial_weights.py``), and has rows to learn the others by. Whoever knows the label party's
    can simulate what each label would have sent back (``attacks/label_inference/enumeration.py``). A secret start takes that
    away; it is no formal guarantee, and what embeddings and gradients tell without it stays.
    """
    return contract.seed if contract.training.starts == "public" else folder.start_secret()
