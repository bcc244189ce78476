"""Where work is done that many machines can share: this process, or the workers of a Ray cluster."""
