"""Translation of text that is already there: whole files, in large batches.

`sentences` cuts lines as a stream does, `decoding` translates batches of sentences with a `search`,
`lines` goes from lines to their translations, and `file_translation` and `sharing` add what files
of millions of lines need: several processes, progress, and resuming after an interruption.
"""
