"""Label attacks: what a feature party can read off its view about the label party's labels, and how well."""

from tallystick.attacks.leakage.audit import LEAKAGE_ATTACKS, LeakageAttack, audit_leakage
from tallystick.attacks.leakage.judge import LeakJudge, LeakVerdict

__all__ = ["LEAKAGE_ATTACKS", "LeakJudge", "LeakVerdict", "LeakageAttack", "audit_leakage"]
