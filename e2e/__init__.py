"""Tests on a real cluster, and what brings one up."""
