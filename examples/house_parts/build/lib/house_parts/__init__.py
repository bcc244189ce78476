"""Parts of one's own for hoptimizer."""
