"""What a hostile or broken guest may answer to a pull, and what is made of it here."""

import hashlib
from typing import Any

import pytest

from orchestrator.connection import GuestClient, GuestFile, list_files, pull_files, push_file, read_files
from orchestrator.connection.incoming import is_safe
from orchestrator.connection.shell import Result
from orchestrator.errors import GuestError, GuestRefused, OrchestratorError
from orchestrator.inventory import Target
from orchestrator.wire import Decoder, Encoder, pack_bytes
from tests.unit.connection.fakes import FakeShell, result

GUEST = GuestFile(data=b"zip", sha256="ab" * 32)
DATA = b"weights" * 1000


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


SIZE, DIGEST = len(DATA), sha256(DATA)


def lines(*messages: dict[str, Any]) -> bytes:
    encoder = Encoder()
    return b"".join(encoder.encode(m["type"], {k: v for k, v in m.items() if k != "type"}) for m in messages)


def file(path: Any = "export/a", size: Any = SIZE) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": size}


def piece(data: bytes = DATA, offset: int = 0, path: str = "export/a") -> dict[str, Any]:
    return {"type": "data", "path": path, "offset": offset, "data": pack_bytes(data)}


def file_end(digest: Any = DIGEST, path: str = "export/a", size: int = SIZE) -> dict[str, Any]:
    return {"type": "file_end", "path": path, "size": size, "sha256": digest}


END = {"type": "end", "run": "r", "files": 1}
NAMES = (file(), END)


class Far:
    """A guest that answers each pull with the next list of lines; remembers what it was asked."""

    def __init__(self, *answers: tuple[dict[str, Any], ...], code: int = 0) -> None:
        self.answers = [result(code, lines(*answer)) for answer in answers]
        self.asked: list[dict[str, Any]] = []
        self.shell = FakeShell(self.answer)
        self.client = GuestClient(self.shell, Target(ct=200), guest=GUEST)

    def answer(self, argv: tuple[str, ...], stdin: bytes) -> Result:
        if argv[0] == "sha256sum":
            return result(0, f"{GUEST.sha256}  x\n".encode())
        if stdin:
            self.asked.append(Decoder().decode(stdin.partition(b"\n")[0] + b"\n"))
        return self.answers.pop(0)


def test_a_file_is_pulled_and_checked(tmp_path):
    told: list[tuple[int, int]] = []
    far = Far(NAMES, (file(), piece(DATA[:10]), piece(DATA[10:], 10), file_end(), END))
    found = pull_files(far.client, "r", "export", tmp_path, progress=lambda *at: told.append(at))
    assert [(each.path, each.size, each.sha256) for each in found] == [("export/a", len(DATA), sha256(DATA))]
    assert (tmp_path / "a").read_bytes() == DATA
    assert told == [(0, len(DATA)), (10, len(DATA)), (len(DATA), len(DATA))]


def test_what_came_before_a_cut_is_taken_up(tmp_path):
    (tmp_path / "a").write_bytes(DATA[:100])
    far = Far(NAMES, (file(), piece(DATA[100:], 100), file_end(), END))
    pull_files(far.client, "r", "export", tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA


def test_what_was_taken_up_and_is_of_another_file_is_pulled_again_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"?" * 100)
    rest = (file(), piece(DATA[100:], 100), file_end(), END)
    far = Far(NAMES, rest, (file(), piece(), file_end(), END))
    pull_files(far.client, "r", "export", tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_file_that_is_there_whole_is_not_sent_again(tmp_path):
    (tmp_path / "a").write_bytes(DATA)
    pull_files(Far(NAMES, (file(), file_end(), END)).client, "r", "export", tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_longer_file_that_is_there_is_none_of_it(tmp_path):
    (tmp_path / "a").write_bytes(DATA + b"more")
    pull_files(Far(NAMES, (file(), piece(), file_end(), END)).client, "r", "export", tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_damaged_file_is_refused(tmp_path):
    far = Far(NAMES, (file(), piece(b"?" + DATA[1:]), file_end(), END))
    with pytest.raises(OrchestratorError, match="export/a: it arrived damaged: another sha256; try again"):
        pull_files(far.client, "r", "export", tmp_path)


def test_a_file_that_changes_between_list_and_pull_is_refused(tmp_path):
    far = Far(NAMES, (file(size=7), piece(b"weights"), file_end(sha256(b"weights"), size=7), END))
    with pytest.raises(OrchestratorError, match="export/a: it changed while it was pulled"):
        pull_files(far.client, "r", "export", tmp_path)
    with pytest.raises(OrchestratorError, match="export/a: it changed while it was pulled"):
        pull_files(Far(NAMES, (END,)).client, "r", "export", tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "export/../../x",
        "/etc/passwd",
        "export/..",
        "exports/a",
        "",
        "export/",
        "export/a\nb",
        "export/.ssh",
        "export/a b",
        "export/\x1b[31m",
        "export/a/b/c/d/e/f/g/h/i",
        "export/" + "x" * 300,
        7,
        None,
        ["export/a"],
    ],
)
def test_a_path_that_was_not_asked_for_or_could_lead_out_is_no_answer(path, tmp_path):
    far = Far((file(path), END))
    with pytest.raises(GuestError, match="not asked for or is not safe") as caught:
        pull_files(far.client, "r", "export", tmp_path)
    assert "\x1b" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["export/a", "export/more/model-00001-of-00002.safetensors", "export/a=b+c@1_2"]
)
def test_an_ordinary_path_is_safe(path):
    assert is_safe(path, "export")
    assert is_safe("export/a", "export/a")


@pytest.mark.parametrize(
    "answer",
    [
        (piece(), END),
        (file(), file(), END),
        (file(), piece(path="export/b"), END),
        (file(), piece(offset=1), END),
        (file(), piece(DATA + b"more"), END),
        (file(), piece(b""), END),
        (file(), {**piece(), "data": "?"}, END),
        (file(), {"type": "data", "path": "export/a", "offset": 0}, END),
        (file(), piece(DATA[:-1]), file_end(), END),
        (file(), piece(), file_end("00"), END),
        (file(), piece(), file_end(None), END),
        (file(), piece(), file_end(), file(), END),
        (file(), piece(), END),
        (file(size=-1), END),
        (file(size=True), END),
        (file(size="9"), END),
        (file(size=1 << 60), END),
        ({"type": "log", "data": ""}, END),
    ],
)
def test_lines_out_of_order_or_out_of_bounds_are_no_answer(answer, tmp_path):
    with pytest.raises(GuestError):
        pull_files(Far(NAMES, answer).client, "r", "export", tmp_path)


def test_a_guest_that_ends_early_is_no_answer(tmp_path):
    with pytest.raises(GuestError, match="no whole answer"):
        pull_files(Far(NAMES, (file(), piece())).client, "r", "export", tmp_path)


def test_a_refusal_carries_its_code(tmp_path):
    error = {"type": "error", "code": "not_found", "message": "no such folder", "hint": None}
    with pytest.raises(GuestRefused) as caught:
        pull_files(Far((error,), code=3).client, "r", "export", tmp_path)
    assert caught.value.reason == "not_found"


def test_small_files_are_read_and_bounded():
    answer = (file(size=3), piece(b"abc"), file_end(sha256(b"abc"), size=3), END)
    assert read_files(Far(answer).client, "r", "export") == {"export/a": b"abc"}
    with pytest.raises(GuestError, match="more than 2 bytes of small files"):
        read_files(Far(answer).client, "r", "export", limit_bytes=2)
    damaged = (file(size=3), piece(b"abd"), file_end(sha256(b"abc"), size=3), END)
    with pytest.raises(OrchestratorError, match="damaged"):
        read_files(Far(damaged).client, "r", "export")


def test_names_come_without_and_hashes_with_a_sha256():
    assert [each.sha256 for each in list_files(Far(NAMES).client, "r", "export")] == [None]
    hashed = {"type": "hashed", "path": "export/a", "bytes": 5}
    found = list_files(Far((file(), hashed, file_end(), END)).client, "r", "export", hashes=True)
    assert [each.sha256 for each in found] == [sha256(DATA)]


def test_no_space_on_this_machine_is_told_before_a_byte_is_asked_for(tmp_path):
    far = Far((file(size=1 << 43), END))
    with pytest.raises(OrchestratorError, match="bytes are free on this machine"):
        pull_files(far.client, "r", "export", tmp_path)


def test_a_push_asks_first_and_sends_only_what_is_not_there(tmp_path):
    source = tmp_path / "a.bin"
    source.write_bytes(DATA)
    path = "compile-cache/artifacts/a.bin"

    def answer(*, already: bool) -> tuple[dict[str, Any], ...]:
        return ({"type": "pushed", "path": path, "already": already},)

    far = Far(answer(already=True))
    assert push_file(far.client, "r", path, source, sha256(DATA)) is False
    told: list[tuple[int, int]] = []
    far = Far(answer(already=False), answer(already=False))
    assert (
        push_file(far.client, "r", path, source, sha256(DATA), progress=lambda *at: told.append(at)) is True
    )
    assert [bool(each.get("check")) for each in far.asked] == [True, False]
    assert (far.asked[1]["size"], far.asked[1]["sha256"]) == (len(DATA), sha256(DATA))
    assert told[-1] == (len(DATA), len(DATA))
