"""One turn: take in what the streams brought, diagnose, decide, and carry out the acts that are due.

`loop` has the watch itself, `events` what it tells: a view imports that alone, and starts in half the time.
"""
