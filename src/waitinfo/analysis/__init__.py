"""Analyses of a trained model: what its info measures, where it stops early, when policies differ.

Every analysis is a module: `compute` makes plain numbers (JSON), `tables` and the `draw` functions
show them, from the numbers alone. `analyses` knows all of them by name.
"""
