"""The users of a soak."""

from __future__ import annotations

from itertools import islice

from ansible_collections.gb10.cluster.plugins.module_utils._bench import cases


def test_the_same_seed_is_the_same_load_and_another_seed_or_user_is_not() -> None:
    first, again, other, neighbour = (list(islice(cases.requests(seed, user, 32768, 15.0), 50)) for seed, user in (("a", 0), ("a", 0), ("b", 0), ("a", 1)))
    assert first == again
    assert first != other
    assert first != neighbour


def test_requests_fit_in_the_context_also_in_a_small_one() -> None:
    for context in (512, 4096, 262144):
        for request in islice(cases.requests("fit", 3, context, 1.0), 2000):
            assert 0 < request.prompt_tokens + request.max_tokens <= 0.7 * context
            assert len(cases.text_of(request).split()) <= request.prompt_tokens


def test_a_day_of_users_has_conversations_that_grow_cold_prompts_cancellations_and_bursts() -> None:
    planned = list(islice(cases.requests("day", 0, 262144, 15.0), 3000))
    grown = [(old, new) for old, new in zip(planned, planned[1:]) if old.conversation == new.conversation]
    assert 0.5 < len(grown) / len(planned) < 0.9
    assert all(new.prompt_tokens > old.prompt_tokens and cases.text_of(new).startswith(cases.text_of(old)) for old, new in grown[:50])
    cold = [each for each in planned if each.prompt_tokens >= cases.COLD_TOKENS]
    assert len(cold) >= 60
    assert len({each.conversation for each in cold}) >= 60, "no prefix cache has them"
    assert 0.03 < sum(each.cancel_after is not None for each in planned) / len(planned) < 0.07
    assert 13 < sum(each.pause for each in planned) / len(planned) < 17
    assert 0.01 < sum(cases.bursts("day", second) for second in range(0, 86400, 10)) / 8640 < 0.06


def test_users_are_no_more_than_the_engine_runs_at_once() -> None:
    assert [cases.users_of(settings) for settings in ({}, {"max-num-seqs": 4}, {"max-num-seqs": "1024"}, {"max-num-seqs": 1})] == [8, 3, 32, 1]
