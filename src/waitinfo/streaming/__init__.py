"""Streaming: incremental decoding, many streams in one batch.

From the inside out: `engine` (the model's caches and rounds) and `recorded` (the same for GPUs),
`session` (one stream's text), `scheduler` (who is served when), `stream`, `translator` and
`asynchronous` (what a user holds).
"""
