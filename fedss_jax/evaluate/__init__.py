"""Scores of an encoder: top-1 over all classes, exact retrieval."""
