"""`python -m tartlet_cli`."""

from __future__ import annotations

from tartlet_cli.main import main

if __name__ == "__main__":
    main()
