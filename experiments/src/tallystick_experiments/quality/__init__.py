"""Quality: a split network beside gradient boosting on the joined table, which no partner would allow."""
