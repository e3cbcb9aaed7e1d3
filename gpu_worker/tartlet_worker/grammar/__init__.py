"""Grammars of samples: compiling them off the step loop, matchers beside token slots, masks of allowed tokens.

Only this package imports llguidance. It never sees logits: samplers apply the masks.
"""
