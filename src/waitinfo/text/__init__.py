"""Text: files, tokenizers and prepared corpora. Nothing here needs torch."""

from waitinfo.text.corpus import Corpus
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

__all__ = ["Corpus", "Tokenizer", "Vocabulary"]
