"""What every floor stands on: errors, paths, options and validation, batching, text and progress."""
