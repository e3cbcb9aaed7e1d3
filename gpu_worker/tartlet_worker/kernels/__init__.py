"""C kernels for the CPU, built where there is a compiler; everything works without them."""


def available() -> bool:
    """True if the kernels are built and this CPU can run them."""
    return False
