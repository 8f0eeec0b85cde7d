"""Distillation: training text whose targets are a teacher's translations.

`distill` translates the sources of a corpus, `filters` takes the best translation of each that is
good enough, and `mixing` writes the new pairs and a share of the old ones, each marked with its
origin.
"""
