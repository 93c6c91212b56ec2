"""The lab's fixtures, for every test of this folder."""

from tests.lab.fixtures import clean_lab, lab

__all__ = ["clean_lab", "lab"]
