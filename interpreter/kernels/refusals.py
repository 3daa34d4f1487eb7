"""Why the gateway can't be used, in sentences that name the setting to change."""

import socket
import ssl

from tornado.httpclient import HTTPClientError
from tornado.iostream import StreamClosedError

from interpreter.errors import GatewayError
from interpreter.kernels.target import GatewayTarget

CONNECT_ERRORS = (OSError, StreamClosedError, HTTPClientError)


def unauthorized_sentence(target: GatewayTarget) -> str:
    """Which setting to change when the gateway wants other credentials."""
    if target.auth == "none":
        return "The gateway wants credentials; set gateway_auth and gateway_token or gateway_password."
    return f"The gateway refuses gateway_{target.auth}."


def connection_error(target: GatewayTarget, error: BaseException) -> GatewayError:
    """What went wrong on the way to the gateway, in one sentence that names the setting."""
    url = target.url
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "it can't be verified"
        return GatewayError(
            f"The gateway's TLS certificate is not trusted ({reason}); "
            "set gateway_ca_file, or change gateway_url to the name in the certificate.",
            code="gateway_certificate",
        )
    if isinstance(error, ssl.SSLError):
        return GatewayError(
            f"No TLS connection to {url}; does gateway_url need http, or gateway_client_cert?",
            code="gateway_tls",
        )
    if isinstance(error, socket.gaierror):
        return GatewayError(
            f"The host name '{target.host}' of gateway_url does not resolve.", code="gateway_unresolved"
        )
    if isinstance(error, ConnectionRefusedError):
        return GatewayError(
            f"Nothing listens at {url}: connection refused; start the gateway or change gateway_url.",
            code="gateway_refused",
        )
    if isinstance(error, HTTPClientError) and error.code == 599 and "imeout" in str(error):
        return GatewayError(
            f"The gateway at {url} did not answer in time (gateway_connect_timeout, gateway_request_timeout).",
            code="gateway_timeout",
        )
    return GatewayError(f"The connection to the gateway at {url} broke.", code="gateway_unreachable")
