"""Questions about a corpus that a language model writes, each checked before it is kept."""
