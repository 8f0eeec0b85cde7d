"""Evaluation of quality and latency."""
