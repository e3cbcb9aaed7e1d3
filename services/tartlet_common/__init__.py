"""Types, errors and edges that all roles share. Imports no role."""
