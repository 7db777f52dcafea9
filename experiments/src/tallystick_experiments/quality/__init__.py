"""Measure quality: a split network next to gradient boosting on the joined table, which no partner would allow."""
