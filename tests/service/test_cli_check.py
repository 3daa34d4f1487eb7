"""``jupyter interpreter check`` against gateways that can't be used, each in its own way."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import scripted_gateway
import trustme
from scripted_gateway import (
    CUT,
    HTTP_500,
    NOT_JUPYTER,
    TRACEBACK_MARK,
    Answer,
    ScriptedGateway,
    ScriptedKernel,
)
from scripted_handlers import routes
from scripted_kernel import JSON
from scripted_language import play
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application

STARTS = "✓ A kernel of python3 starts, in "
ENDED = "✓ The kernel was ended. The gateway can be used."
STEPS = (STARTS, "✓ It computes: 1+1 gives 2, in ", ENDED)


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Scripted kernels answer the sum of the check by a script; ``result 2`` unless another is given."""

    def answer(script: str) -> None:
        async def play_sum(kernel: ScriptedKernel, request: JSON) -> None:
            if request["content"]["code"] == "1+1":
                request["content"]["code"] = script
            await play(kernel, request)

        monkeypatch.setattr(scripted_gateway, "play", play_sum)

    answer("result 2")
    return answer


async def check(
    folder: Path, url: str, auth: str, *arguments: str, **variables: str
) -> tuple[int, list[str]]:
    """Exit code and lines of the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INTERPRETER_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "interpreter", "check", f"--gateway-url={url}", f"--gateway-auth={auth}", *arguments),
        env={**kept, "JUPYTER_CONFIG_DIR": str(folder), "PYTHONIOENCODING": "utf-8", **variables},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert b"Traceback" not in out + err
    assert TRACEBACK_MARK.encode() not in out + err
    assert process.returncode is not None
    return process.returncode, out.decode().splitlines()


async def check_gateway(folder: Path, gateway: ScriptedGateway, *arguments: str) -> tuple[int, list[str]]:
    secrets = {"INTERPRETER_GATEWAY_TOKEN": gateway.token, "INTERPRETER_GATEWAY_PASSWORD": gateway.password}
    return await check(folder, gateway.url, gateway.auth, *arguments, **secrets)


@pytest.mark.usefixtures("computing")
@pytest.mark.parametrize(("auth", "base_url"), [("none", ""), ("token", "/base"), ("password", "/user/ada")])
async def test_a_good_gateway_passes_each_step_and_keeps_no_kernel(
    auth: str, base_url: str, tmp_path: Path
) -> None:
    async with ScriptedGateway(auth=auth, base_url=base_url) as gateway:
        code, lines = await check_gateway(tmp_path, gateway)
        assert code == 0
        assert [line.startswith(start) for line, start in zip(lines[1:], STEPS, strict=True)] == [True] * 3
        assert lines[0].startswith("✓ Jupyter server 2.21.1 with the kernelspecs ")
        assert not gateway.kernels


@pytest.mark.usefixtures("computing")
async def test_a_terminal_without_the_signs_gets_words(tmp_path: Path) -> None:
    async with ScriptedGateway(auth="none") as gateway:
        code, lines = await check(tmp_path, gateway.url, "none", PYTHONIOENCODING="ascii")
        assert (code, {line.split()[0] for line in lines}) == (0, {"ok:"})
        gateway.answer("api", HTTP_500)
        code, lines = await check(tmp_path, gateway.url, "none", PYTHONIOENCODING="ascii")
        assert (code, lines) == (1, ["FAILED: The gateway answered with status 500."])


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://nowhere.invalid", "The host name 'nowhere.invalid' of gateway_url does not resolve."),
        (
            "http://127.0.0.1:1",
            "Nothing listens at http://127.0.0.1:1: connection refused; start the gateway or change gateway_url.",
        ),
        ("ftp://example.org", "gateway_url must look like http://host:port/base/path."),
    ],
)
async def test_an_address_that_leads_nowhere_is_named(url: str, sentence: str, tmp_path: Path) -> None:
    assert await check(tmp_path, url, "none") == (1, [f"✗ {sentence}"])


@pytest.mark.parametrize(
    ("wants", "given", "secret", "sentence"),
    [
        ("token", "token", "wrong", "The gateway refuses gateway_token."),
        (
            "token",
            "token",
            "",
            "gateway_auth is 'token' (the default), but gateway_token is empty: set gateway_token, or set "
            "gateway_auth to 'none' if the gateway wants no credentials.",
        ),
        (
            "token",
            "none",
            "",
            "The gateway wants credentials; set gateway_auth and gateway_token or gateway_password.",
        ),
        ("password", "password", "wrong", "The gateway refuses gateway_password."),
        ("password", "password", "", "gateway_auth is 'password', but gateway_password is empty."),
        (
            "token",
            "password",
            "any",
            "The gateway has no login form; set gateway_auth to 'token' or 'none'.",
        ),
    ],
)
async def test_wrong_credentials_are_named(
    wants: str, given: str, secret: str, sentence: str, tmp_path: Path
) -> None:
    variables = {"INTERPRETER_GATEWAY_TOKEN": secret, "INTERPRETER_GATEWAY_PASSWORD": secret}
    async with ScriptedGateway(auth=wants) as gateway:
        assert await check(tmp_path, gateway.url, given, **variables) == (1, [f"✗ {sentence}"])


@pytest.mark.parametrize(
    ("answer", "start"),
    [(NOT_JUPYTER, "The server at gateway_url ("), (CUT, "The connection to the gateway at ")],
)
async def test_a_server_that_is_no_gateway_is_named(answer: Answer, start: str, tmp_path: Path) -> None:
    async with ScriptedGateway(auth="none") as gateway:
        gateway.answer("*", answer)
        code, (line,) = await check_gateway(tmp_path, gateway)
        assert code == 1
        assert line.startswith(f"✗ {start}{gateway.url}")


async def test_an_unknown_kernelspec_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    async with ScriptedGateway(auth="none") as gateway:
        code, (line,) = await check_gateway(tmp_path, gateway, "--kernel-name=julia")
        assert code == 1
        assert line.startswith("✗ The gateway has no kernelspec 'julia'; set kernel_name to one of: ")
        assert "python3" in line


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "wait for-ever",
            "The kernel starts, but did not answer within kernel_start_timeout (2 seconds).",
        ),
        (
            "result 3",
            "The kernel starts, but does not answer 1+1 with 2; check the kernelspec of kernel_name.",
        ),
        ("die", "The kernel died."),
    ],
)
async def test_a_kernel_that_does_not_compute_fails_and_is_ended(
    script: str, sentence: str, computing: Callable[[str], None], tmp_path: Path
) -> None:
    computing(script)
    async with ScriptedGateway(auth="none") as gateway:
        code, lines = await check_gateway(tmp_path, gateway, "--kernel-start-timeout=2")
        assert (code, lines[2:]) == (1, [f"✗ {sentence}"])
        assert lines[1].startswith(STARTS)
        assert gateway.count("delete") == 1


async def test_the_scheme_is_named_where_it_is_what_is_wrong(tmp_path: Path) -> None:
    async with ScriptedGateway(auth="none") as plain, tls_gateway(trustme.CA(), "127.0.0.1") as (_, port):
        for scheme, right, place in (("https", "http", plain.port), ("http", "https", port)):
            url = f"{scheme}://127.0.0.1:{place}"
            sentence = (
                f"The server at {url} speaks {right}, not {scheme}: let gateway_url begin with {right}://."
            )
            code, lines = await check(tmp_path, url, "none", "--gateway-connect-timeout=0.5")
            assert (code, lines) == (1, [f"✗ {sentence}"])


@asynccontextmanager
async def tls_gateway(authority: trustme.CA, name: str) -> AsyncIterator[tuple[ScriptedGateway, int]]:
    """A gateway behind TLS, with a certificate for ``name``; its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    async with ScriptedGateway() as gateway:
        listener, port = bind_unused_port()
        server = HTTPServer(Application(routes(gateway), log_function=lambda _: None), ssl_options=context)
        server.add_socket(listener)
        try:
            yield gateway, port
        finally:
            server.stop()
            await server.close_all_connections()


@pytest.mark.usefixtures("computing")
async def test_a_certificate_must_be_vouched_for_and_be_for_the_name(tmp_path: Path) -> None:
    authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    async with tls_gateway(authority, "127.0.0.1") as (gateway, port):
        secret = {"INTERPRETER_GATEWAY_TOKEN": gateway.token}
        url, trusted = f"https://127.0.0.1:{port}", f"--gateway-ca-file={ca_file}"
        code, (line,) = await check(tmp_path, url, "token", **secret)
        assert code == 1
        assert line.startswith("✗ The gateway's TLS certificate is not trusted (")
        assert "gateway_ca_file" in line
        code, (line,) = await check(tmp_path, f"https://localhost:{port}", "token", trusted, **secret)
        assert code == 1
        assert "change gateway_url to the name in the certificate" in line
        code, lines = await check(tmp_path, url, "token", trusted, **secret)
        assert (code, lines[-1]) == (0, ENDED)
        code, lines = await check(tmp_path, url, "token", "--gateway-validate-cert=False", **secret)
        assert (code, lines[-1]) == (0, ENDED)
        code, (line,) = await check(tmp_path, url, "token", "--gateway-ca-file=none.pem", **secret)
        assert (code, line) == (1, "✗ gateway_ca_file is not a readable PEM file.")
