import json

import pytest
import torch

from trainer.cli import main
from trainer.drafting import begin_draft
from trainer.export import export
from trainer.model import draft_shape
from trainer.settings import load
from trainer.target.load import load_target

pytestmark = pytest.mark.torch

SETTINGS = ["data.context_tokens=64", "data.anchors=4", "data.batch_rows=2", "eval.windows=2"]
DECODED = ["eval.prompt_tokens=16", "eval.new_tokens=8"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run directory with the export of an untrained drafter."""
    directory = tmp_path_factory.mktemp("run")
    config = load("fast", [])
    target = load_target(config.target, "cpu", torch.float32)
    shape = draft_shape(target.shape, config.draft, config.target)
    draft = begin_draft(config, shape, target, torch.device("cpu"))
    export(directory / "export", draft, target.shape, mask_token=256, dtype="bfloat16")
    return directory


def command(run_dir, *more: str) -> list[str]:
    sets = [word for setting in SETTINGS + DECODED for word in ("--set", setting)]
    return ["eval", "--config", "fast", "--run-dir", str(run_dir), *sets, *more]


def test_a_finished_drafter_s_figures_are_one_json_object(run_dir, capsys):
    assert main(command(run_dir, "--json", "--prompts", "1", "--temperature", "0.7")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["acceptance_length"] == told["teacher_forced"]["drafter"]
    assert len(told["per_position"]) == load("fast", []).draft.block_size - 1
    assert told["decoded"]["prompts"] == 1
    assert told["sampled"]["temperature"] == 0.7


def test_a_finished_drafter_s_figures_are_lines_without_json(run_dir, capsys):
    assert main(command(run_dir, "--prompts", "0")) == 0
    assert capsys.readouterr().out.startswith("acceptance length, teacher-forced on held-out files: drafter ")


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (["--temperature", "-1"], 78, "--temperature"),
        (["--temperature", "nan"], 78, "--temperature nan: allowed: 0 (greedy) or more"),
        (["--prompts", "100000000"], 78, "--prompts 100000000: allowed: 0 to 65536"),
        (["--export", "nowhere"], 65, "drafter nowhere"),
        (["--set", "target.mask_token=257"], 65, "its mask token is 256"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_its_exit_code(run_dir, capsys, more, code, told):
    assert main(command(run_dir, *more)) == code
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
