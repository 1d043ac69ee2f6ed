"""Signed S3 requests (Signature Version 4) with nothing but Python's own library."""

import datetime
import hashlib
import hmac
import urllib.error
import urllib.request


def request(
    keys: tuple[str, str], method: str, endpoint: str, path: str, query: str = "", body: bytes = b""
) -> tuple[int, str]:
    """The status and the text of the answer. The query is given encoded, with its names in order."""
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    digest = hashlib.sha256(body).hexdigest()
    headers = {
        "host": endpoint.split("://")[1],
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
    }
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    signed = "\n".join([method, path, query, *lines, "", names, digest])
    scope = f"{day}/us-east-1/s3/aws4_request"
    digest = hashlib.sha256(signed.encode()).hexdigest()
    key = b"AWS4" + keys[1].encode()
    for part in [*scope.split("/"), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"{keys[0]}/{scope}"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    )
    url = endpoint + path + (f"?{query}" if query else "")
    sent = urllib.request.Request(url, body or None, headers, method=method)
    try:
        with urllib.request.urlopen(sent, timeout=10) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode(errors="replace")
