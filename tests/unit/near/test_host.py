from orchestrator.observe.host import parse_status


def test_a_running_container_is_running():
    assert parse_status("cpus: 4\nstatus: running\nuptime: 5\n", "State:  RUNNING\n") == "running"


def test_a_frozen_container_is_frozen_though_pct_says_running():
    assert parse_status("status: running\n", "State:          FROZEN\n") == "frozen"


def test_a_backup_lock_is_told():
    assert parse_status("lock: backup\nstatus: running\n", "State: RUNNING") == "locked:backup"


def test_a_stopped_container_is_stopped_even_under_a_lock():
    assert parse_status("lock: backup\nstatus: stopped\n", "State: STOPPED") == "stopped"


def test_words_that_are_neither_are_unknown_and_not_stopped():
    assert parse_status("status: unknown\n", "") is None
    assert parse_status("", "") is None
