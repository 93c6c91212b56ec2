"""Token after token: the target alone, and with a drafter whose tokens it verifies."""
