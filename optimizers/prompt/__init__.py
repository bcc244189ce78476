"""Searches over prompts with DSPy's optimizers."""
