"""`python -m orchestrator` is the `dflashctl` script."""

from orchestrator.cli import main

if __name__ == "__main__":
    main()
