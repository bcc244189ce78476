"""``python -m hoptimizer.cli`` is ``hop``."""

from hoptimizer.cli import main

main()
