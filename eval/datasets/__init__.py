"""Data sets: a user's own folder, the bundled ones, and importers of published formats."""
