"""The frozen model that the drafter drafts for: what is asked of it, and the two kinds of it."""
