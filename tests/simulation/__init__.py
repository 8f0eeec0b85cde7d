"""Deterministic simulation of a server and its clients: one clock, one network, one order of all.

    python -m tests.simulation --seeds 1000000
    python -m tests.simulation --seed 4711      # one of them again, step by step the same

Scheduler, sessions, connections and clients are the real ones; so is every byte that they exchange.
Clock, sockets and threads are not: `world` has one thread of the machine run them all, in an order
that a seed decides. `engine` writes tokens by a rule instead of a model, `actors` are the clients,
the attackers and the faults, and `scene` puts them together and checks what must always hold.
"""
