"""The benchmark's own machinery, with our trainer on the CPU; peers' sources are the user's to fetch."""

import json

import pytest
import torch

from benchmarks import beside_peers, peer_steps
from benchmarks.step_given import make_given

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def test_turns_are_taken_and_a_trainer_that_cannot_is_named(capsys):
    chosen = ["--impl", "flex", "--impl", "flash", "--shape", "packed", "--rounds", "2", "--steps", "1"]
    assert beside_peers.main([*chosen, "--tiny", "--device", "cpu", "--json"]) == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == ["flash", "flex", "flex", "flex"]
    flex, flash = told["trainers"]
    assert (flex["tokens"], flex["anchors"], len(flex["turns_ms"])) == (198, 12, 2)
    assert "it computes on a GPU in bfloat16" in flash["failure"]
    assert told["best_peer"] is None


def test_both_layouts_have_the_same_tokens_and_hidden_states():
    packed, rows = (make_given("packed", layout, "flex", CPU, tiny=True) for layout in ("packed", "rows"))
    assert packed.packed
    assert not rows.packed
    assert rows.batch.tokens.shape == (3, 66)
    assert torch.equal(packed.batch.tokens[0, :198], rows.batch.tokens.flatten())
    assert torch.equal(packed.taps[0, :198], rows.taps.flatten(0, 1))
    assert packed.anchors.keep.all()
    assert rows.anchors.keep.all()
    assert bool((packed.anchors.index + packed.config.draft.block_size <= packed.anchors.ends).all())


def test_a_peers_anchors_are_pinned_for_one_step_and_its_loss_is_in_our_units():
    class Sampler(torch.nn.Module):
        def _sample_anchor_positions(self):
            return "drawn"

    draft, model = torch.nn.Linear(4, 1), Sampler()
    optimizer = torch.optim.AdamW(draft.parameters(), lr=0.1)
    loss = torch.tensor(0.0)

    def one_loss():
        nonlocal loss
        loss = draft(torch.ones(4)).square().sum() + 1
        return loss

    pinned = (model, "_sample_anchor_positions", lambda: "pinned")
    peer = peer_steps.Peer(draft, one_loss, pinned, optimizer, loss_factor=2.0)
    with peer.pinned():
        assert model._sample_anchor_positions() == "pinned"
    assert model._sample_anchor_positions() == "drawn"
    before = draft.weight.detach().clone()
    assert peer.step(0) == 2 * loss
    assert not torch.equal(draft.weight, before)
    assert draft.weight.grad is None
