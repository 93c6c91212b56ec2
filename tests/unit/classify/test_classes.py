"""Every class is described, and the description agrees with the catalogue."""

from __future__ import annotations

import pytest

from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.classes import Domain, describe, domain
from orchestrator.types.failure import FailureClass

EACH = pytest.mark.parametrize("failure", FailureClass, ids=lambda f: f.value)


@EACH
def test_each_class_says_what_it_is_and_what_it_does_not_prove(failure: FailureClass):
    info = describe(failure)
    assert info.name == failure.value
    assert info.sentence.endswith(".")
    assert info.sentence[0].isupper()
    assert info.not_proof
    assert not info.not_proof.endswith(".")
    assert info.found_by


@EACH
def test_each_class_has_one_domain(failure: FailureClass):
    assert domain(failure) is describe(failure).domain


def test_the_roles_told_are_those_of_the_signatures():
    for signature in SIGNATURES:
        told = describe(signature.failure).roles
        assert signature.role in told, f"{signature.name}: {signature.role.value} is not told"


def test_only_the_way_there_is_transport():
    found = {failure.value for failure in FailureClass if domain(failure) is Domain.TRANSPORT}
    assert found == {"ssh_error", "pct_error", "tmux_error"}
