"""Fuzzing of what strangers may hand in: HTML, bodies, text, model folders, messages, resumed
streams, the bytes of WebSockets.

    python -m tests.fuzz html --seconds 3600     # with atheris; pip install atheris

Inputs that told something lie in `corpus`, named after their target; the suite runs them all.
"""
