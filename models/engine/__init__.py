"""The in-process engine behind ``local/NAME``."""
