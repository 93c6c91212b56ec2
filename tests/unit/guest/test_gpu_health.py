"""A GPU's health: what a driver does not tell is unknown, and never good."""

from __future__ import annotations

import pynvml
import pytest

from orchestrator.guest import gpu_health


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        (b"00000001:C1:00.0", "0001:c1:00"),
        ("0000:3b:00.0", "0000:3b:00"),
        ("[N/A]", None),
        (None, None),
        ("", None),
    ],
)
def test_a_card_is_named_as_the_kernel_names_it(bus_id, address):
    assert gpu_health.address(bus_id) == address


def test_a_driver_that_knows_none_of_it_leaves_all_unknown(monkeypatch):
    def refuse(*args: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    for name in (
        *("nvmlDeviceGetPciInfo", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows"),
        *("nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetFieldValues"),
    ):
        monkeypatch.setattr(pynvml, name, refuse)
    assert gpu_health.read(None) == dict.fromkeys(gpu_health.FIELDS)


def test_a_binding_without_the_field_leaves_it_unknown(monkeypatch):
    monkeypatch.delattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")
    assert gpu_health._recovery(None) is None


def test_a_card_before_ampere_tells_pages_where_others_tell_rows(monkeypatch):
    def refuse(handle: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetRetiredPagesPendingStatus", lambda handle: 1)
    assert gpu_health._remapped(None) == (True, None)


def test_every_action_of_the_binding_has_its_words():
    prefix = "NVML_GPU_RECOVERY_ACTION_"
    actions = {getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    assert actions <= {0, *gpu_health.RECOVERIES}
