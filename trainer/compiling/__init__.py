"""Compilation: where its caches are, whose turn it is, every shape before the first step, and nothing after.

Up to torch 2.13 the flag that says "FX is tracing" belongs to the process: a thread that traces breaks every
other thread's call of a compiled function, and two threads that compile can lock each other out for ever. So
one thread of one process of a node compiles at a time.
"""
