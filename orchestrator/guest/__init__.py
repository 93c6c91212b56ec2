"""The part that runs inside the container: stdlib, libtmux and pynvml only."""
