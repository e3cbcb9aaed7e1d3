"""The steps of the proof: modules with a function `run`, each run in a process of its own."""
