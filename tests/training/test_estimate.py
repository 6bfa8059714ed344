from unmask.training.estimate import PreviewClock


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
