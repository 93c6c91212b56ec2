import os
import signal
import subprocess
import sys
import time

import pytest

from trainer.signals import STACK_SIGNAL, STOPPING, StopSignals, write_stacks_on_request

SCRIPT = """
import os, signal, sys
from trainer.signals import StopSignals, print_stacks_on_request
print_stacks_on_request()
stop = StopSignals().install()
def here():
    for number in sys.argv[1:]:
        os.kill(os.getpid(), int(number))
here()
print(stop.requested, stop.name, flush=True)
"""


def run(*numbers):
    command = [sys.executable, "-c", SCRIPT, *(str(int(number)) for number in numbers)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("number", STOPPING)
def test_each_stopping_signal_is_remembered_by_name_and_ends_nothing(number):
    done = run(number)
    assert (done.returncode, done.stdout) == (0, f"True {number.name}\n")


def test_without_a_signal_nothing_is_requested():
    assert run().stdout == "False \n"


def test_the_first_signal_gives_the_name():
    assert run(signal.SIGUSR1, signal.SIGTERM).stdout == "True SIGUSR1\n"


def test_sigusr2_prints_the_stacks_and_stops_nothing():
    done = run(signal.SIGUSR2)
    assert (done.returncode, done.stdout) == (0, "False \n")
    assert "in here" in done.stderr


def test_a_second_interrupt_at_once_aborts():
    done = run(signal.SIGINT, signal.SIGINT)
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr


def interrupts(*times):
    clock = iter(times)
    stop = StopSignals(lambda: next(clock))
    for _ in times:
        stop._handle(signal.SIGINT, None)
    return stop


def test_a_second_interrupt_within_two_seconds_is_abrupt():
    with pytest.raises(KeyboardInterrupt):
        interrupts(10.0, 11.9)


def test_a_second_interrupt_later_is_patient():
    assert interrupts(10.0, 12.1, 14.2).name == "SIGINT"


def test_terms_and_warnings_are_patient_however_often_they_come():
    stop = StopSignals(lambda: 0.0)
    for _ in range(5):
        stop._handle(signal.SIGTERM, None)
        stop._handle(signal.SIGUSR1, None)
    assert stop.is_set()


def test_installing_takes_the_handlers_over():
    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        stop = StopSignals().install()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


STUCK = """
import os, sys, threading
from pathlib import Path
from trainer.signals import write_stacks_on_request
write_stacks_on_request(Path(sys.argv[1]), 3)
lock = threading.Lock()
lock.acquire()
def waits_for_ever():
    print("stuck", flush=True)
    lock.acquire()
waits_for_ever()
"""


def test_a_rank_that_waits_for_a_lock_writes_its_stacks_to_its_own_file(tmp_path):
    with subprocess.Popen([sys.executable, "-c", STUCK, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        file = tmp_path / "stacks" / f".rank-3.{process.pid}.{int(STACK_SIGNAL)}"
        assert file.read_text() == ""
        process.send_signal(STACK_SIGNAL)
        deadline = time.monotonic() + 60
        while "waits_for_ever" not in file.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        still = process.poll()
        process.kill()
    assert "waits_for_ever" in file.read_text()
    assert still is None, "it goes on"


def test_a_rank_that_cannot_open_its_file_goes_on_without(tmp_path):
    (tmp_path / "stacks").write_text("a file in the way")
    write_stacks_on_request(tmp_path, 0)
