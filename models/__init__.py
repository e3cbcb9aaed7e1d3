"""Models that come with Tartlet: the demo checkpoint and the code that makes it."""
