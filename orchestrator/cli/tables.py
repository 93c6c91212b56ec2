"""A table for people. On a terminal it never wraps: long cells give way; into a pipe nothing is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.cli.context import SETTINGS

GAP = 2
ELLIPSIS = "…"


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, elastic: Mapping[str, int] | None = None
) -> None:
    """Print the rows. `elastic`: the columns that give way on a narrow terminal, in order, and how far each.

    What still does not fit is left out whole, from the first of `elastic` on: half a column says nothing.
    """
    out = SETTINGS.out
    shown = [list(titles), *(list(row) for row in rows)]
    if out.is_terminal:
        least = {titles.index(title): width for title, width in (elastic or {}).items()}
        shown = _fitted(shown, least, out.width)
    for line in _lines(shown):
        out.print(line, markup=False)


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = _widths(rows)
    return [
        (" " * GAP).join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _fitted(rows: list[list[str]], least: Mapping[int, int], width: int) -> list[list[str]]:
    whole = _widths(rows)
    widths = [min(full, least.get(index, full)) for index, full in enumerate(whole)]
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    gone = set()
    for index in least:
        if spare < 0:
            gone.add(index)
            spare += widths[index] + GAP
    for index in reversed(list(least)):  # who gives way last gets back first
        back = min(spare, whole[index] - widths[index]) if index not in gone else 0
        widths[index] += back
        spare -= back
    return [[_cut(cell, widths[i]) for i, cell in enumerate(row) if i not in gone] for row in rows]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(cell_len(row[index]) for row in rows) for index in range(len(rows[0]))]


def _padded(cell: str, width: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(cell, width)


def _cut(cell: str, width: int) -> str:
    """Return the cell's begin, and its end too where it is one word: names differ at their ends."""
    from rich.cells import cell_len, chop_cells, set_cell_size

    if cell_len(cell) <= width:
        return cell
    if " " in cell:
        return set_cell_size(cell, width - 1).rstrip() + ELLIPSIS
    head = width // 2
    tail = ""
    for character in reversed(cell):
        if cell_len(character + tail) > width - 1 - head:
            break
        tail = character + tail
    return chop_cells(cell, head)[0] + ELLIPSIS + tail
