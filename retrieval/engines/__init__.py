"""Search engines that run elsewhere and have their own index: Qdrant, OpenSearch, PostgreSQL."""
