"""Text as a model sees it: vocabularies, subwords, corpora of token ids. This package does not import torch."""
