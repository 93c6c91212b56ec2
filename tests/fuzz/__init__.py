"""Bytes that no program should print, and what must hold all the same."""
