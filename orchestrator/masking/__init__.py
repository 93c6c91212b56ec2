"""Secrets in text that leaves a container: found by value or by shape, and masked byte for byte.

Pure and stdlib only, because the same files travel inside the guest.
"""

from orchestrator.masking.masker import REACH, Masker
from orchestrator.masking.names import DEFAULT_NAMES, is_secret_name, secret_values

__all__ = ["DEFAULT_NAMES", "REACH", "Masker", "is_secret_name", "secret_values"]
