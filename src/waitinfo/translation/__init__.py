"""Translation of text that is already there: whole files, in large batches.

`source` cuts lines into sentences as a stream does, `search` (with `greedy` and `beam`) translates
a batch of them, `lines` goes from lines to their translations, and `files` adds what files of
millions of lines need: several processes, progress, and resuming after an interruption.
"""
