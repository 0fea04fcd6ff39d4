"""Text in and out: vocabularies, subwords, aligned corpora, over-long lines. Nothing here needs torch."""
