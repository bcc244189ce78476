"""Fine-tuning: the training loop, and the training of each kind of model."""
