"""The training of the embedded ColBERT checkpoint."""
