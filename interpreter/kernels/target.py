"""Where the gateway is and how it wants to be asked."""

import ssl
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from interpreter.errors import SettingsError
from interpreter.settings import Settings


@dataclass(frozen=True, slots=True, repr=False)
class GatewayTarget:
    """URL (no trailing slash), auth and TLS of one gateway. Timeouts in seconds."""

    url: str
    auth: str = "none"
    token: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0
    request_timeout: float = 30.0
    keeps_messages: bool = False
    """Whether the gateway is one of ours, which keeps what a kernel says while our socket is lost."""

    def __repr__(self) -> str:
        return f"GatewayTarget({self.url}, auth={self.auth})"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    def http_url(self, *parts: str) -> str:
        """The URL of an API path; each part is quoted."""
        return "/".join([self.url, *(quote(part, safe="") for part in parts)])

    def ws_url(self, kernel_id: str, client_id: str) -> str:
        """The URL of a kernel's channels. The same ``client_id`` gets what it missed replayed."""
        split = urlsplit(self.http_url("api", "kernels", kernel_id, "channels"))
        scheme = "wss" if split.scheme == "https" else "ws"
        return urlunsplit((scheme, split.netloc, split.path, f"session_id={client_id}", ""))

    @classmethod
    def from_settings(cls, settings: Settings) -> "GatewayTarget":
        """The external gateway of the settings. Raises SettingsError that names the wrong one."""
        url = settings.gateway_url.strip().rstrip("/")
        try:
            split = urlsplit(url)
            _ = split.port
        except ValueError as error:
            raise SettingsError(f"gateway_url is not a URL: {error}.") from error
        if split.scheme not in ("http", "https") or not split.hostname:
            raise SettingsError("gateway_url must look like http://host:port/base/path.")
        if split.username or split.password or split.query or split.fragment:
            raise SettingsError(
                "gateway_url must hold no user, query or fragment; use gateway_token or gateway_password."
            )
        if settings.gateway_auth == "token" and not settings.gateway_token:
            raise SettingsError(
                "gateway_auth is 'token' (the default), but gateway_token is empty: set gateway_token, or set "
                "gateway_auth to 'none' if the gateway wants no credentials."
            )
        if settings.gateway_auth == "password" and not settings.gateway_password:
            raise SettingsError("gateway_auth is 'password', but gateway_password is empty.")
        return cls(
            url=url,
            auth=settings.gateway_auth,
            token=settings.gateway_token,
            password=settings.gateway_password,
            tls=_tls_context(settings) if split.scheme == "https" else None,
            connect_timeout=settings.gateway_connect_timeout,
            request_timeout=settings.gateway_request_timeout,
        )


def _tls_context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.gateway_ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError("gateway_ca_file is not a readable PEM file.") from error
    if not settings.gateway_validate_cert:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.gateway_client_cert:
        try:
            context.load_cert_chain(settings.gateway_client_cert, settings.gateway_client_key or None)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                "gateway_client_cert and gateway_client_key are not a readable PEM pair."
            ) from error
    return context
