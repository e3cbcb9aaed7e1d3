"""The client: launches programs on a Tartlet cluster and talks to them while they run."""
