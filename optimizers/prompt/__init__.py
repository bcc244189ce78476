"""Searches over prompts, by DSPy's optimizers."""
