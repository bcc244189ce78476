"""Search engines that run elsewhere: Qdrant, OpenSearch, PostgreSQL, APIs of web search."""
