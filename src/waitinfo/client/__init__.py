"""Clients of a server: streams over the network that survive interruptions.

`streams` has a stream and what it keeps to continue, `clients` are what a user holds. Needs neither
torch nor a model.
"""
