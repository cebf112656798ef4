import httpx
import pytest

from baton.client import ResumingTransport
from baton.client.router_list import RouterList

URL = httpx.URL("http://a:8000/v1/completions?x=1")


def test_each_loss_leads_to_the_next_router() -> None:
    routers = RouterList(["http://b:8000/v1", "https://c", "http://a:8000"])
    assert routers.num_routers(URL) == 3
    chosen = [str(routers.choose(URL, num_losses)) for num_losses in range(4)]
    wanted = [f"{origin}/v1/completions?x=1" for origin in ("http://a:8000", "http://b:8000", "https://c")]
    assert chosen == [*wanted, wanted[0]]


def test_lost_routers_come_last_and_the_latest_loss_after_all_others() -> None:
    routers = RouterList(["http://b:8000"])
    other = URL.copy_with(host="b")
    routers.lose(URL)
    assert routers.choose(URL, 0) == other
    routers.lose(other)
    assert routers.choose(URL, 0) == routers.choose(URL, 1) == URL
    routers.lose(URL)
    assert routers.choose(URL, 0) == routers.choose(URL, 1) == other


@pytest.mark.parametrize("url", ["http://a/models", "router:8000", "/v1"])
def test_a_routers_url_has_a_host_and_no_path(url: str) -> None:
    with pytest.raises(ValueError, match=r"must be like http://host:8000, not"):
        ResumingTransport(routers=[url])
