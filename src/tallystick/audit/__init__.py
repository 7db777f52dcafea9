"""Audit what a run gave away: views that a party recorded, given to the attacks, measured by the truth that it has at home."""
