"""Text: files, tokenizers, prepared corpora and batches."""

from waitinfo.text.batches import Batch, BatchStream
from waitinfo.text.corpus import Corpus
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

__all__ = ["Batch", "BatchStream", "Corpus", "Tokenizer", "Vocabulary"]
