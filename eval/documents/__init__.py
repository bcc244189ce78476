"""A data set from a user's own documents and table of questions."""
