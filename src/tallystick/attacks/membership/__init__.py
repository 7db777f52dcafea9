"""Attack a union run for membership: find out which rows the other side has, from a view alone.

In a union run a row that the other side lacks carries a synthetic label (seen by the feature party through cut gradients)
or a synthetic feature (seen by the label party as cut embeddings). Each attack scores how real a row looks.
Threat model of all: an honest-but-curious party with its own view, the contract and its own rows.
"""
