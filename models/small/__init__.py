"""Small models that take steps of a program over from the language model."""
