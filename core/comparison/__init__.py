"""Variants side by side: which runs answered the same questions, in what they differ, and whether by more than chance.

What other rooms may use is listed here.
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from hoptimizer.comparison.compare import compare_variants, estimates
    from hoptimizer.comparison.keeping import log_comparison
    from hoptimizer.comparison.listing import page_of
    from hoptimizer.comparison.result import Compared, Comparison, Group

__all__ = ["Compared", "Comparison", "Group", "compare_variants", "estimates", "log_comparison", "page_of"]

# Imported when first used: the address of a page needs no plots.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "compare": ["compare_variants", "estimates"],
        "keeping": ["log_comparison"],
        "listing": ["page_of"],
        "result": ["Compared", "Comparison", "Group"],
    },
)
