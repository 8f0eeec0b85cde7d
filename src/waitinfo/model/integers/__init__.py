"""Models computed with 8-bit integers.

`packing` stores weights as integers, `matrix` multiplies them, `exact` is the attention between the
products, and `conversion` makes a Transformer of them.
"""
