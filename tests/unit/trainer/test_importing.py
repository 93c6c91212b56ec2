"""Imports without a look for garbage."""

import gc
import importlib
import subprocess
import sys

import pytest

from trainer.importing import uncollected


def test_nothing_is_collected_within_and_all_is_as_before_after_it():
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_import_that_fails_leaves_collection_on():
    with pytest.raises(ImportError), uncollected():
        importlib.import_module("trainer.nothing_of_that_name")
    assert gc.isenabled()


def test_what_is_kept_for_good_is_not_looked_through_and_what_comes_later_is_collected():
    code = """
import gc, weakref
from trainer.importing import keep_for_good
class Ring: pass
keep_for_good()
assert gc.get_freeze_count() > 1000
ring = Ring()
ring.self, gone = ring, weakref.ref(ring)
del ring
gc.collect()
assert gone() is None
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
