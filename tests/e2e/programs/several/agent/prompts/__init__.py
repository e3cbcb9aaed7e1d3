"""The texts of prompts."""
