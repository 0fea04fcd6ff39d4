"""Translation over HTTP: the API that LibreTranslate's clients use, a queue that batches, and a page."""
