"""From a user's text to the sentences a model translates, and back: real text, without torch."""
