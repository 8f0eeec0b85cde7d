"""Analyses of a trained model: what its info measures, where it stops early, when policies differ.

Every analysis is a module with two functions: `compute` makes plain numbers (JSON), `tables` shows
them. `pictures` draws them, from the numbers alone. `run` knows all analyses by name.
"""
