"""Answers questions."""
