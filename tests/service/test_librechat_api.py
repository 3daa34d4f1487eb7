"""LibreChat's code API over real sockets: who asks, errors, files."""

import asyncio
import base64
import hmac
import json
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from fakes import Api
from tornado.httpclient import HTTPResponse

from interpreter.errors import (
    KernelStartTimeoutError,
    RateLimitedError,
    SettingsError,
    TooManySessionsError,
    UnauthorizedError,
)
from interpreter.frontends.librechat import programmatic, programs, waiting
from interpreter.frontends.librechat.jwts import JwtVerifier
from interpreter.models import RunStatus
from interpreter.settings import Settings

ID = re.compile(r"[A-Za-z0-9_-]{21}")
SECRET = "an HS256 secret of more than 32 bytes"
ED25519 = Ed25519PrivateKey.generate()
RSA = generate_private_key(65537, 2048)


def pem(key: Any) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    text: str = key.public_key().public_bytes(encoding, form).decode()
    return text


def jwks() -> str:
    ed = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(ED25519.public_key()))
    rsa = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key()))
    return json.dumps({"keys": [{**ed, "kid": "e1"}, {**rsa, "kid": "r1"}]})


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def part(value: Any) -> str:
    return encoded(json.dumps(value).encode())


def signed(
    sub: Any = "user-1",
    *,
    key: Any = ED25519,
    algorithm: str = "EdDSA",
    kid: str | None = "e1",
    **claims: Any,
) -> str:
    """What LibreChat signs; a claim of None is left out."""
    now = int(time.time())
    whole = {
        "iss": "librechat", "aud": "codeapi", "sub": sub, "tenant_id": "t1", "role": "USER", "jti": "j",
        "iat": now, "nbf": now, "exp": now + 300, "principal_source": "librechat_jwt",
        "auth_context_hash": "h", **claims,
    }  # fmt: skip
    kept = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """The service with all ways to ask; files of 1 kB at most."""
    running = await Api.start(
        tmp_path,
        state_dir=str(tmp_path / "state"),
        librechat_jwt_key=jwks(),
        librechat_jwt_secret=SECRET,
        max_file_bytes=1000,
    )
    yield running
    await running.aclose()


async def execute(
    api: Api, code: str = "1", headers: dict[str, str] | None = None, **body: Any
) -> HTTPResponse:
    token = "run" if headers is None else None
    return await api.ask(
        "POST", "/librechat/exec", {"lang": "py", "code": code, **body}, token=token, headers=headers
    )


async def upload(
    api: Api, *files: tuple[str, bytes], path: str = "/upload", user: str | None = None, **fields: str
) -> HTTPResponse:
    """A form as LibreChat sends it: fields first."""
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'.encode()
        for n, v in fields.items()
    ]
    for name, content in files:
        head = f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")
    headers = {"Content-Type": "multipart/form-data; boundary=B", **(bearer(user) if user else {})}
    body = b"".join(parts) + b"--B--\r\n"
    token = None if user else "run"
    return await api.ask("POST", f"/librechat{path}", raw=body, token=token, headers=headers)


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {signed(user)}"}


def json_of(answer: HTTPResponse, code: int = 200) -> Any:
    assert answer.code == code, answer.body
    return json.loads(answer.body)


# -- who asks ----------------------------------------------------------------------------------


async def test_keys_come_in_four_ways(api: Api) -> None:
    secret = api.secrets["run"]
    pairs = (f":{secret}", f"{secret}:", f"librechat:{secret}")
    basics = [{"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"} for pair in pairs]
    ways = [
        {"X-API-Key": secret},
        {"Authorization": f"Bearer {secret}"},
        {"Authorization": f"token {secret}"},
    ]
    for headers in (*ways, *basics):
        assert (await execute(api, headers=headers)).code == 200, headers
    owners = {session.info.owner_id for session in api.sessions.live.values()}
    assert len(owners) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": "wrong"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer a.b.c"},
        {"Authorization": "Basic ???"},
        {"Authorization": "Basic Og=="},
        {"Authorization": "Bearer"},
    ],
)
async def test_others_are_told_so_in_the_clients_shape(api: Api, headers: dict[str, str]) -> None:
    answer = await execute(api, headers=headers)
    body = json_of(answer, 401)
    assert isinstance(body["error"], str)
    assert body["code"] in ("unauthorized", "invalid_token")
    assert "WWW-Authenticate" in answer.headers


async def test_a_role_that_may_not_run_is_refused(api: Api) -> None:
    body = json_of(await execute(api, headers={"X-API-Key": api.secrets["review"]}), 403)
    assert body["code"] == "forbidden"


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(ED25519, "EdDSA", "e1"), (RSA, "RS256", "r1"), (SECRET, "HS256", None), (SECRET, "HS256", "any")],
)
async def test_signed_tokens_are_accepted(api: Api, key: Any, algorithm: str, kid: str | None) -> None:
    token = signed(key=key, algorithm=algorithm, kid=kid)
    assert (await execute(api, headers={"Authorization": f"Bearer {token}"})).code == 200
    (session,) = api.sessions.live.values()
    assert session.info.owner_name == "librechat:user-1"


@pytest.mark.parametrize(
    "change",
    [
        {"exp": -60, "iat": -200},  # seconds from now
        {"nbf": 200},
        {"exp": 4000},
        {"exp": None},
        {"iat": None},
        {"sub": None},
        {"sub": " "},
        {"sub": 5},
        {"aud": "other"},
        {"aud": None},
        {"iss": "other"},
        {"iss": None},
        {"kid": "unknown"},
        {"kid": None},
        {"key": Ed25519PrivateKey.generate()},
        {"key": "another HS256 secret, but a wrong one", "algorithm": "HS256"},
        {"key": None, "algorithm": "none"},
    ],
    ids=", ".join,
)
async def test_signed_tokens_that_are_wrong_are_refused(api: Api, change: dict[str, Any]) -> None:
    now = int(time.time())
    times = {name: now + change[name] for name in ("exp", "iat", "nbf") if change.get(name) is not None}
    token = signed(**change | times)
    assert (await execute(api, headers={"Authorization": f"Bearer {token}"})).code == 401
    assert not api.sessions.live


def test_a_public_key_is_no_shared_secret() -> None:
    verifier = JwtVerifier.from_settings(Settings(librechat_jwt_key=pem(RSA)))
    assert verifier is not None
    assert verifier.verify(signed(key=RSA, algorithm="RS256", kid=None)) is not None
    head, claims = (
        part(value)
        for value in (
            {"alg": "HS256", "typ": "JWT"},
            jwt.decode(signed(), options={"verify_signature": False}),
        )
    )
    signature = hmac.digest(pem(RSA).encode(), f"{head}.{claims}".encode(), "sha256")
    with pytest.raises(UnauthorizedError):
        verifier.verify(f"{head}.{claims}.{encoded(signature)}")


def test_keys_are_read_from_files_and_texts(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(pem(ED25519))
    for value in (str(tmp_path / "key.pem"), pem(ED25519), pem(ED25519).replace("\n", "\\n"), jwks()):
        verifier = JwtVerifier.from_settings(Settings(librechat_jwt_key=value))
        assert verifier is not None
        assert verifier.verify(signed()) is not None
    assert JwtVerifier.from_settings(Settings()) is None


@pytest.mark.parametrize(
    "value", ["/no/such/file", "{}", '{"keys": []}', "-----BEGIN X-----", '{"kty": "EC"}']
)
def test_keys_that_are_wrong_stop_the_start(value: str) -> None:
    with pytest.raises(SettingsError, match="librechat_jwt_key"):
        JwtVerifier.from_settings(Settings(librechat_jwt_key=value))


def test_secret_keys_and_short_secrets_stop_the_start() -> None:
    private = ED25519.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(SettingsError, match="librechat_jwt_key"):
        JwtVerifier.from_settings(Settings(librechat_jwt_key=private.decode()))
    with pytest.raises(SettingsError, match="librechat_jwt_secret"):
        JwtVerifier.from_settings(Settings(librechat_jwt_secret="short"))


async def test_users_of_signed_tokens_do_not_see_each_others_files(api: Api) -> None:
    made = json_of(await upload(api, ("a.txt", b"1"), user="user-1", kind="user", id="user-1"))
    path = (
        f"/librechat/download/{made['storage_session_id']}/{made['files'][0]['fileId']}?kind=user&id=user-1"
    )
    assert (await api.ask("GET", path, token=None, headers=bearer("user-1"))).body == b"1"
    assert (await api.ask("GET", path, token=None, headers=bearer("user-2"))).code == 404
    session_id = json_of(await execute(api, headers=bearer("user-1")))["session_id"]
    for user, code in (("user-1", 200), ("user-2", 404)):
        answer = await api.ask("GET", f"/librechat/files/{session_id}", token=None, headers=bearer(user))
        assert answer.code == code


async def test_skills_are_shared_by_the_users_of_a_tenant(api: Api) -> None:
    skill = {"kind": "skill", "id": "skill-1", "version": "2"}
    made = json_of(await upload(api, ("a.md", b"1"), user="user-1", **skill))
    path = f"/librechat/sessions/{made['storage_session_id']}/objects/{made['files'][0]['fileId']}"
    other = {"Authorization": f"Bearer {signed('user-2', tenant_id='t2')}"}
    for query, headers, code in (
        ("kind=skill&id=skill-1&version=2", bearer("user-2"), 200),
        ("kind=skill&id=skill-1&version=3", bearer("user-2"), 404),
        ("kind=user&id=user-1", bearer("user-2"), 404),
        ("kind=skill&id=skill-1&version=2", other, 404),
    ):
        assert (await api.ask("GET", f"{path}?{query}", token=None, headers=headers)).code == code


# -- running -----------------------------------------------------------------------------------


async def test_the_clients_key_and_parameters_do_not_reach_the_code(api: Api) -> None:
    answer = await execute(
        api, "print(1)", LIBRECHAT_CODE_API_KEY="secret", user_id="u", codeSessionKey="k", apiKey="secret"
    )
    body = json_of(answer)
    assert ID.fullmatch(body["session_id"])
    assert [request.code for request in api.runs.requests] == ["print(1)"]
    assert "secret" not in str(api.sessions.live)


async def test_the_prefix_may_end_in_v1(api: Api) -> None:
    assert (await api.ask("POST", "/librechat/v1/exec", {"lang": "py", "code": "1"}, token="run")).code == 200
    for path in ("/librechat/health", "/librechat/v1/health"):
        answer = await api.ask("GET", path, token=None)
        assert (answer.code, answer.body) == (200, b"OK")


async def test_a_hint_keeps_the_session(api: Api) -> None:
    hint = "v2:conversation:0123456789abcdef"
    first = json_of(await execute(api, runtime_session_hint=hint))
    second = json_of(await execute(api, runtime_session_hint=hint))
    other = json_of(await execute(api, runtime_session_hint=hint + "0"))
    assert [body["runtime_status"] for body in (first, second, other)] == ["new", "reused", "new"]
    assert first["session_id"] == first["runtime_session_id"] == second["session_id"] != other["session_id"]
    assert "runtime_session_id" not in json_of(await execute(api))


async def test_a_session_is_kept_by_its_id(api: Api) -> None:
    first = json_of(await execute(api))
    assert json_of(await execute(api, session_id=first["session_id"]))["session_id"] == first["session_id"]
    assert json_of(await execute(api, session_id="gone"))["session_id"] != first["session_id"]


async def test_timeouts_come_in_milliseconds(api: Api) -> None:
    await execute(api, timeout=2500)
    await execute(api, timeout=10**9)
    await execute(api)
    assert [request.timeout for request in api.runs.requests] == [2.5, 3600.0, None]


@pytest.mark.parametrize("hint", ["会話-1", "x" * 400, "\n", "\ud800", "a b"])
async def test_a_hint_may_be_any_text(api: Api, hint: str) -> None:
    bodies = [json_of(await execute(api, runtime_session_hint=sent)) for sent in (hint, hint, f"{hint}2")]
    assert [body["runtime_status"] for body in bodies] == ["new", "reused", "new"]


@pytest.mark.parametrize(("path", "status"), [("exec", "RE"), ("exec/programmatic", "error")])
async def test_code_that_cannot_be_run_is_told_to_the_model(api: Api, path: str, status: str) -> None:
    body = {"lang": "py", "code": "\ud800", "tools": []}
    answer = json_of(await api.ask("POST", f"/librechat/{path}", body, token="run"))
    assert (answer["status"], answer["stdout"]) == (status, "")
    assert "surrogate" in answer["stderr"]
    assert not api.runs.requests


async def test_languages_without_a_kernel_are_told_to_the_model(api: Api) -> None:
    body = json_of(await execute(api, lang="js"))
    assert body["stderr"] == "No kernel for js is installed here. Use one of: py, bash.\n"
    assert ID.fullmatch(body["session_id"])
    assert not api.runs.requests
    assert json_of(await execute(api, lang="klingon"), 400)["error"] == "Unsupported language: klingon"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"code": "1"}', b'{"lang": "py", "code": 1}', b"\xff"])
async def test_bodies_that_are_wrong_are_refused(api: Api, raw: bytes) -> None:
    body = json_of(await api.ask("POST", "/librechat/exec", raw=raw, token="run"), 400)
    assert isinstance(body["error"], str)


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (RateLimitedError("x", retry_after=2.5), 429, {"error": "rate_limited", "retry_after_seconds": 3}),
        (TooManySessionsError("All taken."), 429, {"error": "rate_limited", "retry_after_seconds": 1}),
        (KernelStartTimeoutError("Too slow."), 504, {"error": "Too slow.", "code": "kernel_start_timeout"}),
    ],
)
async def test_errors_have_the_keys_that_the_client_reads(
    api: Api, error: Exception, code: int, shown: dict[str, Any]
) -> None:
    api.sessions.error = error
    body = json_of(await execute(api), code)
    assert shown.items() <= body.items()


async def test_a_client_that_goes_away_cancels_its_run(api: Api) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    body = json.dumps({"lang": "py", "code": "wait"}).encode()
    head = f"POST /librechat/exec HTTP/1.1\r\nHost: x\r\nX-API-Key: {api.secrets['run']}\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    await api.runs.submitted.wait()
    writer.close()
    run_id, reason = await api.runs.cancelled.get()
    assert reason == "The client went away."
    assert api.runs.active[run_id].run.status is RunStatus.CANCELLED


async def test_code_does_not_wait_long_behind_a_program_that_nobody_answers(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepared(*_: Any, **__: Any) -> bool:
        return True

    monkeypatch.setattr(programmatic, "ask", prepared)
    monkeypatch.setattr(waiting, "_FORGOTTEN", 0.2)
    body = {"code": "wait", "tools": [{"name": "t"}], "runtime_session_hint": "one"}
    asking = asyncio.ensure_future(api.ask("POST", "/librechat/exec/programmatic", body, token="run"))
    await api.runs.submitted.wait()
    (program,) = api.runs.active.values()
    shown = {"output_type": "display_data", "data": {programs.MIME: {"calls": [{"id": "1"}]}}}
    program.say("output", {"index": 0, "output": shown})
    assert json_of(await asking)["status"] == "tool_call_required"
    api.runs.submitted.clear()
    following = asyncio.ensure_future(execute(api, "wait", runtime_session_hint="one"))
    run_id, reason = await api.runs.cancelled.get()
    assert (run_id, reason) == (program.run.id, "Nobody answered its calls of tools.")
    await api.runs.submitted.wait()
    (other,) = (active for active in api.runs.active.values() if active is not program)
    other.finish(RunStatus.OK)
    assert json_of(await following)["runtime_status"] == "reused"


async def test_continuation_tokens_are_checked(api: Api) -> None:
    body = {"continuation_token": "x", "tool_results": []}
    assert json_of(await api.ask("POST", "/librechat/exec/programmatic", body, token="run"), 404)


# -- files -------------------------------------------------------------------------------------


async def test_an_upload_is_found_by_both_generations(api: Api) -> None:
    made = json_of(await upload(api, ("data 1.csv", b"a,b\n"), entity_id="agent_1"))
    storage_id, (file,) = made["storage_session_id"], made["files"]
    assert made["message"] == "success"
    assert made["session_id"] == storage_id
    assert ID.fullmatch(storage_id)
    assert ID.fullmatch(file["fileId"])
    assert file["filename"] == "data 1.csv"
    (row,) = json_of(await api.ask("GET", f"/librechat/files/{storage_id}?detail=full", token="run"))
    assert row["name"] == f"{storage_id}/{file['fileId']}.csv"
    assert row["metadata"]["original-filename"] == "data 1.csv"
    path = f"/librechat/sessions/{storage_id}/objects/{file['fileId']}"
    seen = json_of(await api.ask("GET", f"{path}?kind=user&id=u", token="run"))
    assert seen["lastModified"] == row["lastModified"]
    download = await api.ask("GET", f"/librechat/download/{storage_id}/{file['fileId']}", token="run")
    assert (download.body, download.headers["Content-Type"]) == (b"a,b\n", "text/csv; charset=utf-8")
    assert json_of(await api.ask("DELETE", path, token="run"))["id"] == file["fileId"]
    for gone in (path, f"/librechat/download/{storage_id}/{file['fileId']}"):
        assert (await api.ask("GET", gone, token="run")).code == 404


async def test_a_batch_goes_on_after_a_bad_file(api: Api) -> None:
    files = [
        ("s/SKILL.md", b"1"),
        ("../x", b"2"),
        ("s/SKILL.md", b"3"),
        ("big", b"x" * 2000),
        ("s/t.py", b"4"),
    ]
    body = json_of(await upload(api, *files, path="/upload/batch", kind="skill", id="s", version="1"))
    assert (body["message"], body["succeeded"], body["failed"]) == ("partial_success", 2, 3)
    assert [row["status"] for row in body["files"]] == ["success", "error", "error", "error", "success"]
    assert [row["filename"] for row in body["files"]] == [name for name, _ in files]
    assert all(row["error"] for row in body["files"][1:4])
    names = {
        row["metadata"]["original-filename"]
        for row in json_of(
            await api.ask(
                "GET",
                f"/librechat/files/{body['storage_session_id']}?kind=skill&id=s&version=1",
                token="run",
            )
        )
    }
    assert names == {"s/SKILL.md", "s/t.py"}


async def test_a_batch_with_no_good_file_is_an_error(api: Api) -> None:
    body = json_of(await upload(api, ("..", b"1"), path="/upload/batch"), 400)
    assert (body["message"], body["succeeded"], body["failed"]) == ("error", 0, 1)


async def test_a_batch_has_at_most_two_hundred_files(api: Api) -> None:
    body = json_of(await upload(api, *((f"{n}.txt", b"1") for n in range(203)), path="/upload/batch"))
    assert (body["succeeded"], body["filesLimitReached"], body["maxFiles"]) == (200, True, 200)


@pytest.mark.parametrize(
    ("files", "code"),
    [([("big.bin", b"x" * 1001)], 413), ([("../x", b"1")], 400), ([], 400), ([("", b"1")], 400)],
)
async def test_uploads_that_are_wrong_are_refused(
    api: Api, files: list[tuple[str, bytes]], code: int
) -> None:
    assert isinstance(json_of(await upload(api, *files), code)["error"], str)


async def test_uploads_need_a_form(api: Api) -> None:
    for path in ("/librechat/upload", "/librechat/upload/batch"):
        answer = json_of(await api.ask("POST", path, {}, token="run"), 415)
        assert answer["error"] == "Send the files as multipart/form-data."


async def test_files_are_put_where_the_code_runs(api: Api) -> None:
    made = json_of(await upload(api, ("in/data.csv", b"first")))
    ref = {
        "id": made["files"][0]["fileId"],
        "storage_session_id": made["storage_session_id"],
        "name": "in/data.csv",
    }
    session_id = json_of(await execute(api, files=[ref]))["session_id"]
    path = api.sessions.workspaces.root / session_id / "in" / "data.csv"
    assert path.read_bytes() == b"first"
    path.write_bytes(b"changed by the code")
    again = json_of(await execute(api, files=[ref], session_id=session_id))
    assert again["session_id"] == session_id
    assert path.read_bytes() == b"changed by the code"


async def test_a_file_of_a_session_leads_back_to_it(api: Api) -> None:
    session_id = json_of(await execute(api))["session_id"]
    (api.sessions.workspaces.root / session_id / "out.txt").write_bytes(b"1")
    (row,) = json_of(await api.ask("GET", f"/librechat/files/{session_id}", token="run"))
    ref = {"id": row["id"], "session_id": session_id, "name": "out.txt"}
    assert json_of(await execute(api, files=[ref]))["session_id"] == session_id


async def test_files_with_one_name_are_all_there_and_the_newest_has_it(api: Api) -> None:
    refs = []
    for content in (b"old", b"new"):
        made = json_of(await upload(api, ("data.csv", content)))
        refs.append({"id": made["files"][0]["fileId"], "session_id": made["session_id"], "name": "data.csv"})
    body = json_of(await execute(api, files=refs))
    folder = api.sessions.workspaces.root / body["session_id"]
    assert (folder / "data.csv").read_bytes() == b"new"
    assert (folder / "data-2.csv").read_bytes() == b"old"
    assert "data-2.csv" in body["stderr"]


async def test_a_file_that_has_expired_is_told(api: Api) -> None:
    ref = {"id": "f" * 21, "session_id": "s" * 21, "name": "lost.csv"}
    body = json_of(await execute(api, files=[ref]))
    assert body["stderr"] == "lost.csv has expired here; it must be uploaded again.\n"


@pytest.mark.parametrize("path", ["/files/..", "/files/x", "/download/x/y", "/sessions/%2e%2e/objects/y"])
async def test_ids_of_another_form_lead_nowhere(api: Api, path: str) -> None:
    assert (await api.ask("GET", f"/librechat{path}", token="run")).code == 404


async def test_uploads_end_after_a_day(api: Api, tmp_path: Path) -> None:
    root = tmp_path / "state" / "librechat" / ("a" * 40)
    for name, age in (("o" * 21, 25), ("n" * 21, 23)):
        (root / name).mkdir(parents=True)
        (root / name / "a.txt").write_bytes(b"1")
        os.utime(root / name, (0, time.time() - age * 3600))
    json_of(await upload(api, ("b.txt", b"1")))
    assert not (root / ("o" * 21)).exists()
    assert (root / ("n" * 21) / "a.txt").exists()


async def test_a_client_that_goes_away_leaves_no_half_upload(api: Api, tmp_path: Path) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    part_head = '--B\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
    head = (
        f"POST /librechat/upload HTTP/1.1\r\nHost: x\r\nX-API-Key: {api.secrets['run']}\r\n"
        f"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 900\r\n\r\n{part_head}"
    )
    writer.write(head.encode() + b"x" * 100)
    while not (found := list((tmp_path / "state" / "librechat").glob(".uploads/*"))):
        await asyncio.sleep(0)
    writer.close()
    while found[0].exists():
        await asyncio.sleep(0)


async def test_methods_that_a_route_has_not_are_told(api: Api) -> None:
    answer = await api.ask("GET", "/librechat/exec", token="run")
    assert (json_of(answer, 405)["code"], answer.headers["Allow"]) == ("method_not_allowed", "POST")
