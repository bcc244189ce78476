"""One vector for a passage: encoders, and exact search among their vectors."""
