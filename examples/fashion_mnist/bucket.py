#!/usr/bin/env python3
"""folder.py with files that are read from S3, each by a signed request of its own: what there is without a cache.

  bucket.py --data http://HOST:PORT/BUCKET/PREFIX [the options of folder.py]

AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION are as everywhere.
"""

import http.client
import os
import urllib.parse
import xml.etree.ElementTree as ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import folder


class Bucket(folder.Folder):
    """The files PREFIX/LABEL/NAME.jpeg of a bucket."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.host = parts.netloc
        self.bucket, _, self.prefix = parts.path.strip("/").partition("/")
        self.connection = None
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        self.signer = S3SigV4Auth(Credentials(*(os.environ.get(name) for name in names)), "s3",
                                  os.environ.get("AWS_REGION", "us-east-1"))
        self.files = sorted((key, int(key.split("/")[-2])) for key in self.keys())

    def request(self, path, query=""):
        signed = AWSRequest("GET", f"http://{self.host}{path}{query}")
        self.signer.add_auth(signed)
        # A connection that the server has closed meanwhile is made once more.
        for attempt in range(2):
            if self.connection is None:
                self.connection = http.client.HTTPConnection(self.host, timeout=30)
            try:
                self.connection.request("GET", path + query, headers=dict(signed.headers))
                answer = self.connection.getresponse()
                body = answer.read()
                break
            except (http.client.HTTPException, ConnectionError):
                self.connection = None
                if attempt == 1:
                    raise
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:200]!r}")
        return body

    def keys(self):
        token = ""
        while True:
            query = {"list-type": "2", "encoding-type": "url", "prefix": self.prefix + "/"}
            if token:
                query["continuation-token"] = token
            encoded = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)
            page = ElementTree.fromstring(self.request(f"/{self.bucket}", "?" + encoded))
            space = page.tag.removesuffix("ListBucketResult")
            for key in page.iter(f"{space}Key"):
                yield urllib.parse.unquote_plus(key.text)
            token = page.findtext(f"{space}NextContinuationToken", "")
            if not token:
                return

    def read(self, path):
        return self.request(f"/{self.bucket}/{urllib.parse.quote(path)}")


if __name__ == "__main__":
    folder.main(Bucket)
