"""How a watch looks: plain lines, JSON lines, or a live terminal. Reads events only; never reaches a run."""
