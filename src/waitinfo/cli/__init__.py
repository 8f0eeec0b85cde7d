"""The command line: one verb, one module."""

from waitinfo.cli.app import main

__all__ = ["main"]
