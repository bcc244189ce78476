"""Fine-tuning: the training loop, and what each kind of model learns by it."""
