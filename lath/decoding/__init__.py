"""From a source sentence to tokens: the readable versions, which every faster one must equal."""
