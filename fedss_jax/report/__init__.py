"""Figures of a run, from what it wrote. No JAX here."""
