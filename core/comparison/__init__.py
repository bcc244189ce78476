"""Variants side by side: which runs answered the same questions, in what they differ, and whether by more than chance.

What other rooms may use is listed here.
"""

from hoptimizer.comparison.compare import compare_variants, estimates
from hoptimizer.comparison.keeping import log_comparison
from hoptimizer.comparison.result import Compared, Comparison, Group

__all__ = ["Compared", "Comparison", "Group", "compare_variants", "estimates", "log_comparison"]
