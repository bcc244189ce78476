"""The weights store: pinned models, where they come from, and their conversion."""
