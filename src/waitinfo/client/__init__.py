"""Clients of a server: streams over the network that survive interruptions.

`replay` keeps what is needed to continue, `remote` is a stream, `clients` are what a user holds.
Needs neither torch nor a model.
"""
