import importlib
import importlib.metadata
import sys

import pytest

from benchmarks.beside_peers import Row, best_peer, differing, layout_of, main, table, told
from benchmarks.peer_sources import SOURCES


def row(implementation, ms, layout="packed", loss=12.5, tokens=4000):
    return Row(
        implementation,
        layout,
        {"tokens": tokens, "rows": 1, "anchors": 8, "block_size": 16, "device": "a GPU", "torch": "2.11.0"},
        {"first_step_s": 3.21, "loss": loss, "peak_gib": 45.0},
        [{"ms": [ms, ms + 1, ms + 2], "recompiles": 0, "peak_gib": 44.4} for _ in range(2)],
    )


def failed(implementation):
    return Row(implementation, "packed", failure="exit code 1; its last line: RuntimeError: no")


def test_the_best_peer_is_neither_ours_nor_one_that_failed_half_way():
    broken = row("speculators", 10.0)
    broken.failure = "no answer in 300 s"
    rows = [row("flex", 50.0), row("specforge", 120.0), row("automodel", 80.0), broken, failed("torchspec")]
    assert best_peer(rows) is rows[2]
    assert best_peer([row("flex", 50.0), failed("torchspec")]) is None


def test_ratios_are_of_tokens_a_second_so_that_layouts_of_other_lengths_compare():
    rows = [row("flex", 49.0), row("specforge", 99.0, "rows", tokens=2000)]
    first, second = told("packed", rows, [])["trainers"]
    assert (first["median_ms"], first["turns_ms"], first["context_tokens_per_s"]) == (
        50.0,
        [50.0, 50.0],
        80000,
    )
    assert (first["of_best_peer"], second["of_best_peer"]) == (4.0, 1.0)
    assert first["peak_gib"] == 45.0


def test_the_table_has_a_cell_under_each_heading_and_says_who_failed():
    lines = table("packed", [row("flex", 50.0), row("automodel", 80.0), failed("torchspec")], ["a fault"])
    assert len({line.count("|") for line in lines[2:6]}) == 1
    assert lines[6] == "| torchspec | failed: exit code 1; its last line: RuntimeError: no |"
    assert lines[7] == "a fault"


@pytest.mark.parametrize(
    ("loss", "layout", "faults"),
    [
        (12.5001, "packed", 0),
        (12.6, "packed", 1),
        (float("nan"), "packed", 1),
        (12.6, "rows", 0),  # other anchors: nothing of ours to compare it with
    ],
)
def test_a_first_loss_that_is_not_ours_is_a_fault(loss, layout, faults):
    rows = [row("flex", 50.0), row("automodel", 80.0, layout, loss)]
    assert len(differing(rows, 2e-3, "cuda")) == faults


def test_torchspec_is_not_compared_on_a_cpu_where_it_has_no_mask():
    rows = [row("flex", 50.0), row("torchspec", 80.0, loss=9.0)]
    assert differing(rows, 1e-5, "cpu") == []
    assert len(differing(rows, 2e-3, "cuda")) == 1


def test_only_trainers_that_pack_get_packed_rows():
    packs = {name for name in ("flex", "flash", *SOURCES) if layout_of("packed", name) == "packed"}
    assert packs == {"flex", "flash", "automodel", "speculators"}
    assert layout_of("packed", "flex+rows") == "rows"
    assert layout_of("seed", "specforge") == "packed"


def test_a_missing_source_is_said_before_anything_starts(tmp_path, capsys):
    (tmp_path / "SpecForge" / "specforge").mkdir(parents=True)
    chosen = ["--impl", "specforge", "--impl", "torchspec"]
    with pytest.raises(SystemExit) as ended:
        main(["--src", str(tmp_path), *chosen])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"no TorchSpec/torchspec in it; fetch lightseekorg/TorchSpec into {tmp_path / 'TorchSpec'}" in told
    with pytest.raises(SystemExit):
        main(chosen)
    assert "--src is missing" in capsys.readouterr().err


def test_packages_are_entered_without_what_they_would_import(tmp_path, monkeypatch):
    root = tmp_path / "TorchSpec" / "torchspec"
    (root / "models").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('a whole trainer')\n")
    (root / "models" / "__init__.py").write_text("raise RuntimeError('a whole trainer')\n")
    (root / "models" / "one.py").write_text(
        "from torchspec.utils.logging import logger\nNAME = logger.name\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        SOURCES["torchspec"].open(tmp_path)
        assert importlib.import_module("torchspec.models.one").NAME == "torchspec.utils.logging"
        assert importlib.metadata.version("torchspec") == "0"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchspec"]:
            del sys.modules[name]
