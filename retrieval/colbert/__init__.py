"""Late interaction by ColBERT checkpoints: encoding, two kinds of index, and servers."""
