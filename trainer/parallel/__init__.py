"""Ranks: who they are, which micro-batches each takes, how they talk, and how they end together."""
