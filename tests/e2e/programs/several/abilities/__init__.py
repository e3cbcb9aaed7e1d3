"""What the agent may call."""
