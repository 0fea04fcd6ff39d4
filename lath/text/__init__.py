"""Text: vocabularies, subwords, aligned corpora, splitting of long lines. This package does not import torch."""
