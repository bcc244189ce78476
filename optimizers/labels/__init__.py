"""The sources of training examples and demonstrations: annotations and teachers."""
