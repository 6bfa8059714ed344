from unmask.training.estimate import PreviewClock, preview_seconds


def test_a_preview_is_due_after_its_minute_and_costs_at_most_a_tenth_of_the_time():
    now = [0.0]
    clock = PreviewClock(60, now=lambda: now[0])
    seen = []
    for second in range(1, 1000):
        now[0] = max(now[0], second)
        if clock.due():
            seen.append(second)
            with clock:
                now[0] += 5 if len(seen) < 3 else 30
    assert seen == [60, 120, 180, 480, 780]


def test_without_an_interval_no_preview_is_due():
    now = [0.0]
    clock = PreviewClock(0, now=lambda: now[0])
    now[0] = 1e9
    assert not clock.due()


def test_a_run_of_a_given_time_affords_previews_of_at_most_a_tenth_of_it():
    now = [0.0]
    clock = PreviewClock(60, now=lambda: now[0])
    now[0] = 30.0
    assert clock.affords(3.0)
    assert not clock.affords(3.1)
    with clock:
        now[0] += 6
    now[0] = 80.0
    assert not clock.affords(0.1)  # the first took longer than was guessed
    now[0] = 90.0
    assert clock.affords()


def test_a_preview_reads_the_row_once_for_each_token_at_a_third_of_the_price():
    assert preview_seconds(2, 10, 0.03) == 2 * 10 * 10 * 0.01
