"""Models computed with 8-bit integers, in NumPy and compiled code: no torch.

`packing` stores weights as integers, `matrix` multiplies them, `exact` is the attention between the
products and `crosses` that of single systems, `conversion` makes the parts of weights, and `model`
runs them. With torch, `measuring` looks at a model that is packed, and `in_torch` lends a model to
code that computes with tensors.
"""
