"""How figures are shown: words and digits, tables, plots."""
