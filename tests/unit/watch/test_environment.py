"""A watch writes down what each attempt ran on and was asked to be, for who compares them later."""

from tests.builders import attempt_message


def test_what_an_attempt_ran_on_is_written_down_for_that_attempt(bench):
    bench.live()
    bench.send(attempt_message("environment", {"schema": 1, "torch": "2.11.0", "env": {"TOKEN": "x"}}))
    bench.turn()
    bench.live(attempt=2)
    bench.send(attempt_message("environment", {"schema": 1, "torch": "2.13.0"}, attempt=2))
    bench.turn()
    first, second = bench.record.attempts(bench.rows[0].id)
    assert first.environment == {"schema": 1, "torch": "2.11.0", "env_names": ["TOKEN"]}
    assert (second.environment or {})["torch"] == "2.13.0"
    assert [(each.spec or {})["attempt"] for each in (first, second)] == [1, 2]


def test_an_attempt_that_told_nothing_has_nothing(bench):
    bench.live()
    bench.turn()
    assert [each.environment for each in bench.record.attempts(bench.rows[0].id)] == [None]
