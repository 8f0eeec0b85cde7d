"""Evaluation: quality and latency."""
