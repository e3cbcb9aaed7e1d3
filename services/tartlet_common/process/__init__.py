"""What every role's process does around its work: flags, logging, signals, probes, readiness, the parent's death.

This is the top of `tartlet_common`: it may import every other package here, and those never import it.
"""
