"""What ColBERT and dense retrieval share of a transformer: its files, and how it reads texts."""
