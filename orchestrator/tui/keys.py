"""What each key does, once: for the foot of the screen and for its help. Pure."""

from __future__ import annotations

# The foot shows as many as fit, the first ones first.
FOOT = (
    ("?", "help"),
    ("l", "log"),
    ("e", "explain"),
    ("a", "attach"),
    ("s", "stop"),
    ("r", "relaunch"),
    ("/", "search"),
    ("tab", "panel"),
    ("enter", "details"),
    ("o", "order"),
)

HELP = """\
runs
  up down k j     choose another one; page up, page down, g G
  /               only runs whose name, place or state has a word in it; esc shows all again
  o O             sort by the next column; the other way round
  S N P T A       sort by state, name, step (progress), tokens a second, age of the last look
  enter           everything known of the chosen run

panels
  tab shift+tab   go to the next panel, the one before
  1 2 3 4         curves, GPUs, story, log
  up down g G     scroll; a log that is scrolled up stays there, G follows it again
  /  n N          search in it; next, previous
  l               the log as large as the screen (w folds long lines)

the chosen run
  e               explain: what happened, with the lines that prove it
  a               attach to its tmux session; Ctrl-b d comes back here
  s               stop it for good, after a question; a watch never relaunches it
  r               relaunch it from its last checkpoint, after a question; what lives is stopped first

{end}

signs
  {signs}
  what is blind or stale is not known: its numbers are those of the last good look
"""


def foot(width: int, *, verb: str) -> str:
    """Return the keys, as many as fit; how to leave comes first."""
    text = f"q {'end the watch' if verb == 'watch' else 'leave'}"
    for key, word in FOOT:
        more = f"  {key} {word}"
        if len(text) + len(more) > width:
            break
        text += more
    return text


def help_text(*, verb: str, acts: bool, signs: str) -> str:
    """Return all keys."""
    end = "q, Ctrl-C        "
    if verb == "watch":
        doing = "and nothing is relaunched while no watch runs" if acts else "which only looks"
        end += f"end the watch, {doing}; the runs go on"
    else:
        end += "leave; the runs go on, and so do their watches"
    return HELP.format(end=end, signs=signs)
