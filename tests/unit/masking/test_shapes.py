"""What is a secret by its shape, what is none, and that masking keeps every other byte."""

from __future__ import annotations

import pytest

from orchestrator.masking import Masker

HEX40 = "3f786850e387550fdab836ed7e6dc881de23001b"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"

# (a line, what of it is the secret)
SECRETS = [
    ("logged in with hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789", "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"),
    (r"body: 'x\nhf_AbCdEfGhIjKlMnOpQrStUvWxYz01'", "AbCdEfGhIjKlMnOpQrStUvWxYz01"),
    ("remote: ghp_0123456789abcdefghijABCDEFGHIJ012345 refused", "0123456789abcdefghijABCDEFGHIJ012345"),
    ("github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv", "11ABCDEFG0abcdefghijkl_mnopqrstuv"),
    ("https://oauth2:glpat-abcDEF123456_-ghiJKL@gitlab.com/x.git", "glpat-abcDEF123456_-ghiJKL"),
    ("PRIVATE-TOKEN glpat-abcDEF123456_-ghiJKL", "abcDEF123456_-ghiJKL"),
    ("key sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12Mn34", "proj-Ab12Cd34Ef56Gh78Ij90Kl12Mn34"),
    ("sk-abcdefghijklmnopqrstuvwx12345678", "abcdefghijklmnopqrstuvwx12345678"),
    ("aws AKIAIOSFODNN7EXAMPLE in us-east-1", "IOSFODNN7EXAMPLE"),
    ("slack xoxb-123456789012-abcdefABCDEF", "123456789012-abcdefABCDEF"),
    (
        "//registry.npmjs.org/:_auth npm_0123456789abcdefghijABCDEFGHIJ012345",
        "0123456789abcdefghijABCDEFGHIJ012345",
    ),
    ("upload with pypi-AgEIcHlwaS5vcmcCJDAxMjM0NTY3", "IcHlwaS5vcmcCJDAxMjM0NTY3"),
    ("gcloud ya29.a0AfB_byC0123456789abcdef", "a0AfB_byC0123456789abcdef"),
    (f"cookie {JWT};", JWT[3:]),
    ("redis://:s3cr3t@10.0.0.1:6379/0", "s3cr3t"),
    ("proxy http://bob:p@ss:w0rd@proxy:3128 set", "p@ss:w0rd"),
    ("Authorization: Bearer abcdef0123456789abcdef", "abcdef0123456789abcdef"),
    (f"wandb: paste your API key: {HEX40}", HEX40),
    (f"wandb.login(key='{HEX40}')", HEX40),
    (f"WANDB_API_KEY={HEX40}", HEX40),
    ("export HF_TOKEN=whatever-it-is", "whatever-it-is"),
    ('{"MY_SECRET": "correct-horse"}', "correct-horse"),
    ("connecting with password: hunter2", "hunter2"),
    ("--api-key=abc123def", "abc123def"),
    ("python train.py --wandb-api-key abc123def --steps 3", "abc123def"),
    ("Process 12: serve -password hunter2 --port 80 --verbose", "hunter2"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    ("{'SecretAccessKey': 'wJalrXUtnFEMI/K7MDENG'}", "wJalrXUtnFEMI/K7MDENG"),
    ('"sessionToken": "FwoGZXIvYXdzEJr"', "FwoGZXIvYXdzEJr"),
    ("AccountName=data;AccountKey=Zm9vYmFyYmF6cXV4;EndpointSuffix=x", "Zm9vYmFyYmF6cXV4"),
    ("clientSecret: abc123xyz", "abc123xyz"),
    ("Authorization: token abcdef0123456789abcdef", "abcdef0123456789abcdef"),
    ("403 for url: https://s3/x?X-Amz-Date=1&X-Amz-Signature=0f3a9b7c55aa&y=1", "0f3a9b7c55aa"),
    (
        "GET /x?X-Amz-SignedHeaders=a&X-Amz-Security-Token=IQoJb3JpZ2luX2VjEJ%2F%2F HTTP/1.1",
        "IQoJb3JpZ2luX2VjEJ%2F%2F",
    ),
    ("https://cdn/x?Policy=eyJ&Signature=AbC~dEf-0123&Key-Pair-Id=K2", "AbC~dEf-0123"),
    ("https://a.blob.core.windows.net/c?sv=2022&sig=Ab%2Bc%3D0123", "Ab%2Bc%3D0123"),
    ("POST https://hooks.slack.com/services/T0000/B0000/aBcDeFgHiJkL0123", "T0000/B0000/aBcDeFgHiJkL0123"),
    ("https://discord.com/api/webhooks/112233/aBcDeFgHiJkL-0123_x", "aBcDeFgHiJkL-0123_x"),
    ("https://api.telegram.org/bot12345:AAFaBcDeFgHiJkL0123/sendMessage", "AAFaBcDeFgHiJkL0123"),
    ("cloning https://0123456789abcdefABCDEF01@github.com/a/b", "0123456789abcdefABCDEF01"),
]

HARMLESS = [
    f"commit {HEX40}",
    f"wandb: code saved at git commit {HEX40}",
    f"wandb: artifact sha1 {HEX40}",
    f"HEAD is now at {HEX40} key fix",
    "sk-learn 1.5.0 and sk-learn-compatible-estimators-of-scikit",
    "tokens: 12, tokens_per_s=123456, max_tokens=4096, n_tokens: 100000000",
    "key=value, cache key: fxabcdefghijklmnop, key='layers.0.self_attn'",
    "mask_token: 151669 pad_token='<|endoftext|>' eos_token=</s>",
    "KeyError: 'layers.0.self_attn.q_proj.weight'",
    "export HF_TOKEN=$MY_HF_TOKEN WANDB_API_KEY=${WANDB_KEY}",
    "HF_TOKEN=None, MY_SECRET=********, USE_TOKEN=true",
    "Downloading https://huggingface.co/Qwen/Qwen3-8B/resolve/main/model.safetensors",
    "tcp://127.0.0.1:29500 init_method=env://, file:///a/b@c",
    "the shelf_life of self_attn_hf_config and eyJust a word",
    "basic understanding of the bearer of bad news",
    "step 3/10 loss 2.345 tokens/s 123456 lr 3e-4 step_s 0.123",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 284.00 GiB.",
    "train.py --mask-token 151669 --pad-token <pad> --max-tokens 4096 --key layers.0.attn --password --x",
    "-------------------------------- secret -------------------------------- token ------",
    "password required; secret sauce; Unexpected token: identifier",
    "wandb: Syncing run dashing-firefly-42",
    "AKIA is a prefix, AKIAx no key",
    "design=flat&sig=12 ?signature=none, the signature= of forward, def f(x): signature='(x)'",
    "ssh://runner@build-host-with-a-long-name.example.org, https://someone@example.org/path",
    "POST https://hooks.slack.com/services failed; see /api/webhooks/ and bot12:00",
    "authorization: token required; the access key is missing, client secret: none",
]


@pytest.mark.parametrize(("line", "secret"), SECRETS)
def test_a_secret_of_a_known_shape_is_starred_out_and_nothing_else(line, secret):
    masked = Masker().text(line)
    assert masked == line.replace(secret, "*" * len(secret))


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_looks_like_a_secret_stays(line):
    assert Masker().text(line) == line


@pytest.mark.parametrize(("line", "secret"), SECRETS)
def test_masking_twice_changes_nothing_more(line, secret):
    once = Masker().text(line)
    assert Masker().text(once) == once


@pytest.mark.parametrize(("line", "secret"), SECRETS)
def test_a_cut_secret_leaves_at_most_what_gives_nothing_away(line, secret):
    """Cut anywhere with the rest to come: at most seven bytes of it are seen, and never its end."""
    begin = line.index(secret)
    for end in range(begin + 1, begin + len(secret)):
        masked = Masker().mask(line[:end].encode(), is_cut=True)
        assert len(masked) == end
        seen = masked[begin:].rstrip(b"*")
        assert len(seen) < 12, (line[:end], masked)
        if end - begin >= 12:
            assert masked.endswith(b"*"), (line[:end], masked)
