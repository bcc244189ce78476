"""Where hoptimizer keeps what it downloads and computes."""

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """Folder of weights, indexes and caches: ``$HOPTIMIZER_HOME``, else the user's cache folder."""
    return Path(os.environ.get("HOPTIMIZER_HOME") or platformdirs.user_cache_path("hoptimizer"))
