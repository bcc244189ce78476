"""What MLflow has for language models: traces of questions, prompts of steps, scorers and evaluation data sets."""
