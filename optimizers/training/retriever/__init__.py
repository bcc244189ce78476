"""Training of the embedded ColBERT checkpoint."""
