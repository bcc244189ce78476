"""How a step is asked: of a small model, or of a language model whose calls are counted."""
