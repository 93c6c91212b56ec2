"""Inventory -> connection -> launch -> observe -> classify -> decide -> act -> record.

The near side of dflashctl, and in `guest` the part that travels into the container.
"""

__version__ = "0.1.0"
