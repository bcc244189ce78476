"""Optimizers that fine-tune models."""
