"""Distillation: training text whose targets are a teacher's translations.

`distill` translates the sources of a corpus, `choosing` takes the best translation of each that
passes the `filters`, and `mixing` writes the new pairs and a share of the old ones, each marked
with its origin.
"""
