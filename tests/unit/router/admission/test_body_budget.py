"""Limits on the bytes of request bodies, per client and in total; each byte is released exactly once."""

import random
from contextlib import suppress

import pytest

from baton.router.admission.body_budget import BodyBudget, Upload
from baton.router.auth.api_key import ApiKey
from baton.router.auth.client import ANONYMOUS, Client
from baton.router.auth.key_meter import KeyMeter
from baton.router.errors import KeyLimitReached, Overloaded


def holder(name: str, max_inflight: int | None = None) -> Client:
    key = ApiKey(name=name, digest=b"", max_inflight=max_inflight)
    return Client(key, KeyMeter(key))


def test_the_bytes_of_a_client_are_limited() -> None:
    budget = BodyBudget(max_bytes=1000, max_client_bytes=100)
    first, second = budget.begin(ANONYMOUS, "10.0.0.1"), budget.begin(ANONYMOUS, "10.0.0.1")
    first.add(60)
    with pytest.raises(Overloaded, match="the client's address is over the limit of 100 bytes"):
        second.add(41)
    second.add(40)
    budget.begin(ANONYMOUS, "10.0.0.2").add(100)
    first.release()
    first.release()
    assert budget.num_bytes == 140
    second.add(60)


def test_the_bytes_of_a_key_are_limited_over_all_addresses() -> None:
    budget, team = BodyBudget(max_bytes=1000, max_client_bytes=100), holder("team")
    budget.begin(team, "10.0.0.1").add(60)
    with pytest.raises(KeyLimitReached, match="the API key is over the limit of 100 bytes"):
        budget.begin(team, "10.0.0.2").add(41)
    budget.begin(holder("other"), "10.0.0.1").add(60)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)
def test_an_ipv6_network_is_one_client(one: str, other: str, same: bool) -> None:
    budget = BodyBudget(max_bytes=1000, max_client_bytes=100)
    budget.begin(ANONYMOUS, one).add(100)
    upload = budget.begin(ANONYMOUS, other)
    if same:
        with pytest.raises(Overloaded):
            upload.add(1)
    else:
        upload.add(100)


def test_a_few_clients_cannot_use_up_the_budget() -> None:
    budget = BodyBudget(max_bytes=1000, max_client_bytes=300)
    for place in range(4):
        upload = budget.begin(ANONYMOUS, f"10.0.0.{place}")
        with suppress(Overloaded):
            for _ in range(1000):
                upload.add(1)
    assert 500 <= budget.num_bytes <= 900
    late = budget.begin(ANONYMOUS, "10.0.1.1")
    late.add(100)
    with pytest.raises(Overloaded, match="the router holds"):
        late.add(1)


def test_a_client_without_bytes_gets_no_share_of_the_budget() -> None:
    budget = BodyBudget(max_bytes=1000, max_client_bytes=1000)
    for place in range(100):
        upload = budget.begin(ANONYMOUS, f"10.0.1.{place}")
        upload.add(20)
        upload.add(-20)  # 20 compressed bytes stood for none
        upload.release()
    budget.begin(ANONYMOUS, "10.0.0.1").add(400)
    budget.begin(ANONYMOUS, "10.0.0.2").add(200)


def test_uploads_count_as_completions_of_their_key() -> None:
    budget, team = BodyBudget(1000, 1000), holder("team", max_inflight=2)
    first, second = budget.begin(team, ""), budget.begin(team, "")
    with pytest.raises(
        KeyLimitReached, match="0 completions in flight and 2 requests being received, and its limit is 2"
    ):
        budget.begin(team, "")
    first.end()
    first.release()
    third = budget.begin(team, "")
    with pytest.raises(KeyLimitReached):
        budget.begin(team, "")
    third.release()
    second.release()


def test_every_outcome_releases_all_bytes() -> None:
    rng = random.Random(5)
    budget = BodyBudget(max_bytes=3000, max_client_bytes=900)
    team = holder("team", max_inflight=8)
    clients = [(ANONYMOUS, "10.0.0.1"), (ANONYMOUS, "2001:db8::1"), (team, ""), (holder("other"), "")]
    uploads: list[Upload] = []
    for _ in range(5000):
        try:
            if rng.random() < 0.3:
                uploads.append(budget.begin(*rng.choice(clients)))
            elif uploads:
                upload = rng.choice(uploads)
                rng.choice((upload.end, upload.release, lambda u=upload: u.add(rng.randrange(300))))()
        except Overloaded:
            pass
        assert 0 <= budget.num_bytes <= 3000
        if len(uploads) > 20:
            uploads.pop(rng.randrange(len(uploads))).release()
    for upload in uploads:
        upload.release()
    assert budget.num_bytes == 0
    for _ in range(8):
        budget.begin(team, "")
