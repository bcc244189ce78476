"""What commands read and show: their words and options, messages, tables."""
