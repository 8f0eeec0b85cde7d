"""waitinfo: simultaneous machine translation with the wait-info policy."""

__version__ = "0.1.0"
