"""Optimizers that fine-tune."""
