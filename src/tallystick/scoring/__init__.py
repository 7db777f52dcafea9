"""Score new ids with a trained split network while both sides are online."""
