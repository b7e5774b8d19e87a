"""Where the host looks, by counts and milliseconds made up here."""

import pytest

from leap.exits.cuda.schedule import REMEMBERED, Clock, Costs, Schedule, Traffic

LEVELS = [(32, 4096), (16, 2048), (4, 512)]


def schedule(traffic: Traffic, milliseconds: list[float], tests: tuple[int, ...] = (6, 7, 8, 9)) -> Schedule:
    clock = Clock([tokens for _, tokens in LEVELS])
    for level, value in enumerate(milliseconds):
        clock.note(level, value)
    return Schedule(tests, 12, LEVELS, traffic, clock)


def traffic_of(*batches: list[int]) -> Traffic:
    traffic = Traffic(12)
    for _ in range(200):
        for exits in batches:
            traffic.note(exits)
    return traffic


def test_traffic_learns_where_rows_leave() -> None:
    traffic = traffic_of([6, 6, 8, 12])
    assert traffic.staying(5, 0) == pytest.approx(1, abs=1e-3)
    assert traffic.staying(6, 0) == pytest.approx(0.5, abs=1e-3)
    assert traffic.staying(8, 6) == pytest.approx(0.5, abs=1e-3)
    assert traffic.staying(11, 8) == pytest.approx(1, abs=1e-3)


def test_nothing_is_certain_before_there_is_traffic() -> None:
    assert Traffic(4).staying(1, 0) == pytest.approx(0.75)
    assert Traffic(4).staying(3, 2) == pytest.approx(0.5)


def test_a_clock_guesses_by_tokens_until_it_has_times() -> None:
    clock = Clock([400, 100])
    clock.note(0, 0.8)
    assert clock.layer(1) == pytest.approx(0.2)
    for value in (0.5, 0.7, 9.0):
        clock.note(1, value)
    assert clock.layer(1) == 0.7
    assert clock.wants(1)
    for _ in range(6):
        clock.note(1, 0.7)
    assert not clock.wants(1)


def test_the_host_looks_first_where_all_rows_leave() -> None:
    at_seven = schedule(traffic_of([7]), [0.05])
    assert at_seven.next_look(0, 32, 4096, 0) == 7
    assert not at_seven.looks_behind(7, 0, 32, 0)


def test_the_device_goes_on_alone_where_only_the_end_of_a_batch_matters() -> None:
    assert schedule(traffic_of([7]), [0.05, 0.03, 0.01]).first_alone(32, 4096) == 7
    assert schedule(traffic_of([12]), [0.05, 0.03, 0.01]).first_alone(32, 4096) is None
    spread = traffic_of([6, 7, 8, 9])
    # By the host a move at 7 saves .07 ms, and each look costs .045; after 9 nobody is left.
    assert schedule(spread, [0.05, 0.03, 0.01]).first_alone(32, 4096) == 9
    assert schedule(spread, [0.05, 0.049, 0.049]).first_alone(4, 400) == 7
    assert schedule(spread, [0.05, 0.049, 0.049]).first_alone(1, 100) == 6


def test_the_host_takes_part_where_moving_rows_saves_more_than_the_end() -> None:
    quarter_stays = traffic_of([6, 6, 6, 12])
    assert schedule(quarter_stays, [0.05, 0.02, 0.01]).first_alone(32, 4096) is None
    assert schedule(quarter_stays, [0.05, 0.02, 0.01]).first_alone(2, 100) is None
    assert schedule(quarter_stays, [0.05, 0.048, 0.047]).first_alone(2, 100) == 6  # nowhere is it faster


def test_a_batch_that_will_not_finish_early_is_not_looked_at() -> None:
    never = schedule(traffic_of([12]), [0.05])
    assert never.next_look(0, 32, 4096, 0) == 12
    # One row in ten leaves at 6: 32 rows never all do, and the rest fit no smaller level.
    few = schedule(traffic_of([6] + [12] * 9), [0.05])
    assert few.next_look(0, 32, 4096, 0) == 12


def test_a_look_has_to_pay_for_itself() -> None:
    # Layers of a microsecond: five of them cost less than the look.
    assert Costs.look > 5 * 0.001
    assert schedule(traffic_of([7]), [0.001]).next_look(0, 1, 4096, 0) == 12


def test_what_follows_is_launched_first_where_an_end_is_unlikely() -> None:
    mixed = schedule(traffic_of([6] * 9 + [9]), [0.05])
    # 0.9 ** 32 = 0.034 of 0.05 ms in vain against a wait of Costs.look.
    assert mixed.looks_behind(6, 0, 32, 0)
    # 0.9 for one row.
    assert not mixed.looks_behind(6, 0, 1, 0)


def test_what_was_found_out_is_found_out_anew_after_some_batches() -> None:
    traffic = traffic_of([7])
    result = schedule(traffic, [0.05])
    for _ in range(200):
        traffic.note([12])
    looks = []
    for _ in range(REMEMBERED + 1):
        result.begin()
        looks.append(result.next_look(0, 32, 4096, 0))
        for _ in range(200):
            traffic.note([6])
    # The first answer is the traffic's then; the traffic of the second batch on is heard of after some.
    assert looks == [12] * REMEMBERED + [6]


def test_rows_move_where_the_rest_is_worth_it() -> None:
    plan = schedule(traffic_of([6]), [0.1, 0.06, 0.02])
    assert plan.better_level(6, 10, 1000, 0) == 1
    assert plan.better_level(6, 3, 300, 0) == 2
    assert plan.better_level(6, 17, 1000, 0) == 0
    assert plan.better_level(6, 10, 3000, 0) == 0
    assert plan.better_level(12, 1, 10, 0) == 0
    assert Costs.move > 0.1 - 0.06 - 0.03
    # One layer less at half the time does not pay for moving.
    flat = schedule(traffic_of([6]), [0.1, 0.099, 0.098])
    assert flat.better_level(6, 3, 300, 0) == 0


def test_mixed_batches_are_looked_at_where_the_rest_fits_a_smaller_level() -> None:
    mixed = schedule(traffic_of([6, 6, 6, 12]), [0.1, 0.05, 0.0125])
    assert mixed.next_look(0, 32, 4096, 0) == 6
    # No gain from fewer rows: only a common end would pay, and there is none.
    flat = schedule(traffic_of([6, 6, 6, 12]), [0.1, 0.1, 0.1])
    assert flat.next_look(0, 32, 4096, 0) == 12
