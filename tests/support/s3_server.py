#!/usr/bin/python3
"""An S3 server for tests, on 127.0.0.1 and a port of the kernel's choice, that verifies each signature by botocore,
which shares no code with what it is a test of, and misbehaves when it is asked to. It is also a plain web server: below
/web/ without signatures. Prints its port; then takes commands as lines of standard input and answers each with a line:

  put KEY VERSION BYTES [etag TEXT | time SECONDS]   an object, whose content follows from key and version
  text KEY HEX                                       an object of these bytes
  remove KEY
  fault NAME COUNT [METHOD]                          the next COUNT requests (of that method, or INITIATE, PART, COMPLETE)
                                                     meet it
  page N                                             listings have pages of N (7)
  stats                                              requests, connections, requests of parts
  object KEY                                         its bytes, their MD5 and the token of the write that made it
  uploads                                            how many uploads in parts are under way
  begin KEY                                          one that another client has begun

KEY is percent-encoded. Exit code 77: botocore is not installed. Ends with its standard input."""

import datetime
import email.utils
import hashlib
import html
import http.server
import re
import ssl
import sys
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

try:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
except ImportError:
    sys.exit(77)

BUCKET, REGION = "datasets", "eu-test-1"
ACCESS_KEY, SECRET, TOKEN = "AKIDTEST", "sec+ret/Key=", "token+of/the=session"
LOCK = threading.Lock()
OBJECTS: dict[str, dict] = {}
UPLOADS: dict[str, dict] = {}
FAULTS: list[dict] = []
LIMITS = {"page": 7}  # entries of a page of a listing
STATS = {"requests": 0, "connections": 0, "parts": 0}
ENCODED = urllib.parse.quote_plus


def content(key: str, version: int, size: int) -> bytes:
    """Lines of 64 bytes: version, number of the line, the key's end. tests/support/s3_server.hpp has the same."""
    lines = (f"{version:08d} {line:012d} {key[-40:]:>41}\n" for line in range(size // 64 + 1))
    return "".join(lines).encode("latin-1")[:size]


def fault_of(method: str, kind: str) -> str:
    with LOCK:
        for fault in FAULTS:
            if fault["left"] > 0 and fault["method"] in ("", method, kind):
                fault["left"] -= 1
                return fault["name"]
    return ""


def kind_of(method: str, query: dict) -> str:
    """Of a request that writes."""
    if "uploadId" in query:
        return {"PUT": "PART", "POST": "COMPLETE"}.get(method, "")
    return "INITIATE" if "uploads" in query and method == "POST" else ""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        """A client that hangs up is what some tests are about."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self):
        super().setup()
        with LOCK:
            STATS["connections"] += 1

    def log_message(self, *_):
        pass

    def handle_expect_100(self):
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def answer(self, status: int, body: bytes = b"", headers: dict | None = None, length: int | None = None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("x-amz-request-id", f"REQ{STATS['requests']:06d}")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def error(self, status: int, code: str, headers: dict | None = None):
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>said {SECRET}</Message></Error>'
        self.answer(status, body.encode(), headers)

    def signature_problem(self, path: str, query: str) -> str:
        """The code of the error, "" when the signature is right."""
        header = self.headers.get("Authorization", "")
        if not header.startswith("AWS4-HMAC-SHA256 "):
            return "AccessDenied"
        fields = dict(part.strip().split("=", 1) for part in header.split(" ", 1)[1].split(","))
        signed = fields["SignedHeaders"].split(";")
        moment = self.headers.get("x-amz-date", "")
        if fields["Credential"] != f"{ACCESS_KEY}/{moment[:8]}/{REGION}/s3/aws4_request":
            return "InvalidAccessKeyId"
        if self.headers.get("x-amz-security-token") != TOKEN:
            return "InvalidToken"
        needed = {name.lower() for name in self.headers if name.lower().startswith("x-amz-")} | {"host"}
        if not needed <= set(signed):
            return "AccessDenied"
        at = datetime.datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(at.timestamp() - time.time()) > 900:
            return "RequestTimeTooSkewed"
        if self.headers.get("x-amz-content-sha256") != hashlib.sha256(self.body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        # As they mean, not as they are written: botocore encodes and sorts them itself.
        url = f"http://{self.headers['Host']}{urllib.parse.quote(urllib.parse.unquote(path), safe='/~')}"
        request = AWSRequest(self.command, url, params=dict(urllib.parse.parse_qsl(query, keep_blank_values=True)),
                             headers={name: self.headers[name] for name in signed})
        request.context["timestamp"] = moment
        signer = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET), "s3", REGION)
        expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return "" if expected == fields["Signature"] else "SignatureDoesNotMatch"

    def do_GET(self):
        with LOCK:
            STATS["requests"] += 1
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        words = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        fault = fault_of(self.command, kind_of(self.command, words))
        if fault == "clock_skew":
            return self.error(403, "RequestTimeTooSkewed")
        if fault == "bucket_gone":
            return self.error(404, "NoSuchBucket")
        codes = {"403": "AccessDenied", "404": "NoSuchKey", "412": "PreconditionFailed", "416": "InvalidRange",
                 "429": "TooManyRequests", "500": "InternalError", "503": "SlowDown"}
        if fault in codes:
            return self.error(int(fault), codes[fault])
        if fault == "redirect":
            where = f"http://127.0.0.1:1/elsewhere?X-Amz-Signature={SECRET}"
            return self.error(301, "PermanentRedirect", {"Location": where, "x-amz-bucket-region": "eu-other-2"})
        if fault == "hang_up":
            self.close_connection = True
            return None
        if path.startswith("/web/"):
            return self.send_object(urllib.parse.unquote(path[5:]), fault)
        host = self.headers["Host"].split(":")[0]
        by_host = host == f"{BUCKET}.localhost"
        if not by_host and path.split("/")[1] != BUCKET:
            return self.error(404, "NoSuchBucket")
        problem = self.signature_problem(path, query)
        if problem:
            return self.error(403, problem)
        key = urllib.parse.unquote(path[1:] if by_host else path[len(BUCKET) + 2:])
        if self.command in ("PUT", "POST", "DELETE"):
            return self.write(key, words, fault)
        if not key and "uploads" in words:
            return self.send_uploads(words)
        if key or self.command == "HEAD":
            return self.send_object(key, fault)
        return self.send_listing(words, fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def write(self, key: str, query: dict, fault: str):
        with LOCK:
            status, body, headers = self.written(key, query, fault)
        if fault == "hang_up_after":
            self.close_connection = True
            return None
        if status >= 300:
            return self.error(status, body)
        return self.answer(status, body.encode(), headers)

    def written(self, key: str, query: dict, fault: str) -> tuple[int, str, dict]:
        """Status, body or code of the error, headers."""
        kind = kind_of(self.command, query)
        is_taken = self.headers.get("If-None-Match") == "*" and key in OBJECTS
        token = self.headers.get("x-amz-meta-fabric-write", "")
        if kind == "INITIATE":
            name = f"upload/{len(STATS)}+{STATS['requests']}"
            UPLOADS[name] = {"key": key, "parts": {}, "write": token}
            return 200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>", {}
        if "uploadId" in query:
            upload = UPLOADS.get(query["uploadId"])
            if upload is None or upload["key"] != key:
                return 404, "NoSuchUpload", {}
            if self.command == "DELETE":
                del UPLOADS[query["uploadId"]]
                return 204, "", {}
            if kind == "PART":
                etag = f'"{hashlib.md5(self.body).hexdigest()}"'
                upload["parts"][int(query["partNumber"])] = (etag, self.body)
                return 200, "", {"ETag": etag}
            if is_taken:
                return 412, "PreconditionFailed", {}
            if fault in ("hidden_passing", "hidden_refusal"):
                code = "InternalError" if fault == "hidden_passing" else "AccessDenied"
                return 200, f'<?xml version="1.0"?>\n\n<Error><Code>{code}</Code></Error>', {}
            return self.complete(query["uploadId"], upload)
        if self.command != "PUT":
            return 405, "MethodNotAllowed", {}
        if is_taken:
            return 412, "PreconditionFailed", {}
        etag = f'"{hashlib.md5(self.body).hexdigest()}"'
        OBJECTS[key] = {"body": self.body, "etag": etag, "time": 1_700_000_001, "write": token}
        return 200, "", {"ETag": etag}

    def complete(self, name: str, upload: dict) -> tuple[int, str, dict]:
        wanted = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>", self.body.decode())
        parts = [upload["parts"].get(int(number)) for number, _ in wanted]
        if not parts or any(part is None or part[0] != html.unescape(etag) for part, (_, etag) in zip(parts, wanted)):
            return 400, "InvalidPart", {}
        if any(len(part[1]) < 5 << 20 for part in parts[:-1]):
            return 400, "EntityTooSmall", {}
        digests = b"".join(hashlib.md5(part[1]).digest() for part in parts)
        etag = f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'
        OBJECTS[upload["key"]] = {"body": b"".join(part[1] for part in parts), "etag": etag, "time": 1_700_000_001,
                                  "write": upload["write"]}
        del UPLOADS[name]
        return 200, f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>", {}

    def send_uploads(self, query: dict):
        """In pages of one."""
        marker = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        with LOCK:
            all_of = sorted((upload["key"], name) for name, upload in UPLOADS.items()
                            if upload["key"].startswith(query.get("prefix", "")))
        rest = [each for each in all_of if each > marker]
        rows = "".join(f"<Upload><Key>{ENCODED(key)}</Key><UploadId>{name}</UploadId></Upload>" for key, name in rest[:1])
        more = len(rest) > 1
        where = (f"<NextKeyMarker>{ENCODED(rest[0][0])}</NextKeyMarker><NextUploadIdMarker>{rest[0][1]}"
                 "</NextUploadIdMarker>") if more else ""
        self.answer(200, (f"<ListMultipartUploadsResult><EncodingType>url</EncodingType>"
                          f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{where}{rows}"
                          "</ListMultipartUploadsResult>").encode())

    def send_listing(self, query: dict, fault: str):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", "")
        if query.get("list-type") != "2" or query.get("encoding-type") != "url":
            return self.error(400, "InvalidArgument")
        with LOCK:
            facts = {key: (each["etag"], len(each["body"])) for key, each in OBJECTS.items() if key.startswith(prefix)}
        rows: dict[str, str] = {}
        for key, (etag, size) in facts.items():
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                folder = key[:cut + 1]
                rows[folder] = f"<CommonPrefixes><Prefix>{ENCODED(folder)}</Prefix></CommonPrefixes>"
            else:
                rows[key] = (f"<Contents><Key>{ENCODED(key)}</Key><ETag>{escape(etag, {chr(34): '&quot;'})}</ETag>"
                             f"<Size>{size}</Size></Contents>")
        names = sorted((row for row in rows if row > after), key=lambda name: name.encode())
        page, rest = names[:LIMITS["page"]], names[LIMITS["page"]:]
        token = (after or page[-1]) if fault == "same_token" else page[-1] if rest else ""
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        xml = ('<?xml version="1.0" encoding="UTF-8"?><ListBucketResult '
               'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>'
               f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}"
               + "".join(rows[name] for name in page) + "</ListBucketResult>").encode()
        if fault == "truncated_xml":
            xml = xml[:len(xml) * 2 // 3]
        return self.answer(200, xml)

    def send_object(self, key: str, fault: str):
        with LOCK:
            found = OBJECTS.get(key)
            STATS["parts"] += "Range" in self.headers
        if found is None:
            return self.error(404, "NoSuchKey")
        body = found["body"]
        headers = {"ETag": found["etag"], "Last-Modified": email.utils.formatdate(found["time"], usegmt=True)}
        headers["x-amz-meta-fabric-write"] = found.get("write", "")
        headers = {name: value for name, value in headers.items() if value}
        if fault == "no_version":
            headers = {}
        condition, since = self.headers.get("If-Match"), self.headers.get("If-Unmodified-Since")
        if fault == "wrong_etag":
            headers["ETag"] = '"0123456789abcdef0123456789abcdef"'
        elif condition not in (None, found["etag"]) or (
                since and email.utils.parsedate_to_datetime(since).timestamp() < found["time"]):
            return self.error(412, "PreconditionFailed")
        if self.headers.get("If-None-Match") == found["etag"]:
            return self.answer(304, b"", headers)
        if self.headers.get("Range") is None or fault == "whole":
            return self.answer(200, body, headers)
        first, last = (int(word) for word in self.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= len(body):
            return self.error(416, "InvalidRange", {"Content-Range": f"bytes */{len(body)}"})
        part = body[first:last + 1]
        moved = 1 if fault == "wrong_range" else 0
        headers["Content-Range"] = f"bytes {first + moved}-{first + moved + len(part) - 1}/{len(body) + moved}"
        if fault == "wrong_total":
            headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(body) + 1}"
        if fault == "no_range":
            del headers["Content-Range"]
        if fault == "short":
            self.close_connection = True
            return self.answer(206, part[:len(part) // 2], headers, len(part))
        if fault == "long":
            return self.answer(206, part + b"more", headers)
        if fault == "long_chunked":
            headers |= {"Transfer-Encoding": "chunked", "x-amz-request-id": "REQ"}
            self.send_response(206)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(part) + 4, part + b"more"))
            return None
        if fault == "stall":
            self.answer(206, part[:len(part) // 2], headers, len(part))
            threading.Event().wait(60)
            self.close_connection = True
            return None
        return self.answer(206, part, headers)


def command(words: list[str]) -> str:
    key = urllib.parse.unquote(words[1]) if len(words) > 1 else ""
    with LOCK:
        if words[0] in ("put", "text"):
            body = (content(key, int(words[2]), int(words[3])) if words[0] == "put"
                    else bytes.fromhex(words[2] if len(words) > 2 else ""))
            etag, when = f'"{hashlib.md5(body).hexdigest()}"', 1_700_000_000
            if words[4:5] == ["etag"]:
                etag = " ".join(words[5:])
            if words[4:5] == ["time"]:
                etag, when = "", int(words[5])
            OBJECTS[key] = {"body": body, "etag": etag, "time": when}
        elif words[0] == "remove":
            OBJECTS.pop(key, None)
        elif words[0] == "fault":
            FAULTS[:] = [{"name": words[1], "left": int(words[2]), "method": (words[3:] or [""])[0]}]
        elif words[0] == "object":
            found = OBJECTS.get(key)
            return ("none" if found is None else
                    f"{len(found['body'])} {hashlib.md5(found['body']).hexdigest()} {found.get('write') or '-'}")
        elif words[0] == "uploads":
            return str(len(UPLOADS))
        elif words[0] == "begin":
            UPLOADS[f"other/{len(UPLOADS)}"] = {"key": key, "parts": {}, "write": ""}
        elif words[0] == "page":
            LIMITS["page"] = int(words[1])
        elif words[0] == "stats":
            return f"{STATS['requests']} {STATS['connections']} {STATS['parts']}"
        else:
            return "unknown"
    return "ok"


def main():
    server = Server(("127.0.0.1", 0), Handler)
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        print(command(line.split()), flush=True)


if __name__ == "__main__":
    main()
