"""Streaming: incremental decoding, many streams in one batch.

From the inside out: `engine` (rounds, decisions, and what computes), `recorded` (the same on GPUs),
`session` with `words` and `window` (one stream's text), `scheduler` with `channel` (who is served
when), `stream`, `translator` and `asynchronous` (what a user holds).
"""
