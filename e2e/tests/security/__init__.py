"""Tests of permissions, identities, sandboxes and network policies, on a live release."""
