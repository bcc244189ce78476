"""Studies: a grid of variants from one file, as one table."""
