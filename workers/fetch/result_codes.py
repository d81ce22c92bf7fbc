"""The failure kinds of libcurl's result codes."""

from typing import Final

import pycurl

from shared.domain.web.fetch import FailureKind

FAILURES: Final[dict[int, FailureKind]] = {
    pycurl.E_COULDNT_RESOLVE_HOST: FailureKind.DNS,
    pycurl.E_COULDNT_CONNECT: FailureKind.CONNECT,
    pycurl.E_INTERFACE_FAILED: FailureKind.CONNECT,
    pycurl.E_OPERATION_TIMEDOUT: FailureKind.CONNECT_TIMEOUT,  # libcurl enforces only the connect limit
    pycurl.E_SSL_CONNECT_ERROR: FailureKind.TLS,
    pycurl.E_PEER_FAILED_VERIFICATION: FailureKind.TLS,
    pycurl.E_SSL_CERTPROBLEM: FailureKind.TLS,
    pycurl.E_SSL_CIPHER: FailureKind.TLS,
    pycurl.E_SSL_ISSUER_ERROR: FailureKind.TLS,
    pycurl.E_SSL_INVALIDCERTSTATUS: FailureKind.TLS,
    pycurl.E_SSL_PINNEDPUBKEYNOTMATCH: FailureKind.TLS,
    98: FailureKind.TLS,  # CURLE_SSL_CLIENTCERT
    101: FailureKind.TLS,  # CURLE_ECH_REQUIRED
    pycurl.E_GOT_NOTHING: FailureKind.RESET,
    pycurl.E_SEND_ERROR: FailureKind.RESET,
    pycurl.E_RECV_ERROR: FailureKind.RESET,
    pycurl.E_PARTIAL_FILE: FailureKind.RESET,
    pycurl.E_HTTP2: FailureKind.PROTOCOL,
    92: FailureKind.PROTOCOL,  # CURLE_HTTP2_STREAM
    pycurl.E_FTP_WEIRD_SERVER_REPLY: FailureKind.PROTOCOL,  # CURLE_WEIRD_SERVER_REPLY
    pycurl.E_UNSUPPORTED_PROTOCOL: FailureKind.PROTOCOL,
    pycurl.E_BAD_CONTENT_ENCODING: FailureKind.PROTOCOL,
    100: FailureKind.HEADERS_TOO_LARGE,  # CURLE_TOO_LARGE: one header line above libcurl's own limit
    pycurl.E_COULDNT_RESOLVE_PROXY: FailureKind.PROXY,
    97: FailureKind.PROXY,  # CURLE_PROXY
}
"""The failure kind for each of libcurl's result codes. Any other code means `FailureKind.OTHER`. A code is written as
a number if pycurl has no name for it."""
