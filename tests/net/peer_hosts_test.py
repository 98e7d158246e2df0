#!/usr/bin/python3
"""Three hosts (network namespaces) with a fabricd and a `fabric-data serve` each, over the files of one web server:
what one of them has read the others have from its cache or from the owners', certificates on both sides; a host
whose cable is cut costs the others a wait and no read; nothing that is read is wrong. Needs root."""

import collections
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = {f"f{number:02}": random.Random(number).randbytes(150_000 + 1000 * number) for number in range(24)}
FILES["large"] = random.Random(99).randbytes(9 * 2**20 + 17)
CHUNK = 4 * 2**20
COPIES = 2
HOSTS = (1, 2, 3)
WITHIN = 60  # seconds, of the test's own waits
HEAD_START = 2  # seconds that peers have before the silo is asked: longer than a busy machine takes for an answer
SPACE = f"fp{os.getpid()}"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def serve_files(folder, log):
    """The web server, in a namespace of its own: ranges, ETags, and a line in `log` for each GET with a range."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    contents = {name: Path(folder, name).read_bytes() for name in os.listdir(folder)}
    contents["fabric-index.txt"] = "".join(f"{len(text)} {name}\n" for name, text in contents.items()).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(False)

        def do_GET(self):
            self.answer(True)

        def answer(self, with_body):
            content = contents.get(self.path.lstrip("/"))
            if content is None:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            wanted = self.headers.get("Range")
            first, last = 0, len(content) - 1
            if wanted:
                first, last = (int(word) for word in wanted.removeprefix("bytes=").split("-"))
                with open(log, "a", encoding="ascii") as file:
                    file.write(f"{self.client_address[0]} {self.path} {first // CHUNK}\n")
            body = content[first : last + 1]
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"v1-{len(content)}"')
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 80), Handler)
    server.serve_forever()


if len(sys.argv) > 1:
    serve_files(*sys.argv[1:])

if os.geteuid() != 0:
    skip("makes network namespaces, for which it has to be root")

import fabricshm  # noqa: E402
import fabricshm.data as data  # noqa: E402
from fabricshm._daemon import answers, die_with_parent  # noqa: E402

DAEMON = os.environ["FABRICD"]
SERVICE = Path(DAEMON).parent / "data/program/fabric-data"


def run(*words):
    subprocess.run(words, check=True, capture_output=True, timeout=WITHIN)


def wait_for(condition, what):
    limit = time.monotonic() + WITHIN
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(what)
        time.sleep(0.01)


def address_of(host):
    return f"10.77.{host}.2"


def make_network(stack):
    """Namespaces with a cable each to that of the web server, which passes on what is for the others."""
    def space(name):
        try:
            run("ip", "netns", "add", name)
        except (OSError, subprocess.CalledProcessError):
            skip("network namespaces can't be made here")
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        run("ip", "-n", name, "link", "set", "lo", "up")

    space(SPACE)
    run("ip", "-n", SPACE, "addr", "add", "10.77.0.100/32", "dev", "lo")
    run("ip", "netns", "exec", SPACE, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    for host in HOSTS:
        name = f"{SPACE}-{host}"
        space(name)
        run("ip", "-n", SPACE, "link", "add", f"p{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "-n", SPACE, "addr", "add", f"10.77.{host}.1/24", "dev", f"p{host}")
        run("ip", "-n", SPACE, "link", "set", f"p{host}", "up")
        run("ip", "-n", name, "addr", "add", f"{address_of(host)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "route", "add", "default", "via", f"10.77.{host}.1")


def make_certificates(top):
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run("openssl", "req", "-x509", *key, "-subj", "/CN=authority", "-days", "2", "-keyout", f"{top}/ca.key", "-out",
        f"{top}/ca.pem")
    for host in HOSTS:
        (top / f"{host}.ext").write_text(f"subjectAltName=IP:{address_of(host)}\n")
        run("openssl", "req", *key, "-subj", f"/CN=host{host}", "-keyout", f"{top}/{host}.key", "-out", f"{top}/{host}.csr")
        run("openssl", "x509", "-req", "-in", f"{top}/{host}.csr", "-CA", f"{top}/ca.pem", "-CAkey", f"{top}/ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", f"{top}/{host}.ext", "-out", f"{top}/{host}.pem")
        (top / f"{host}.key").chmod(0o600)


class Host:
    def __init__(self, stack, top, number):
        self.number, self.top = number, top / f"host{number}"
        self.top.mkdir()
        self.attach, self.socket = str(self.top / "attach.sock"), str(self.top / "data.sock")
        self.start(stack, "fabricd", DAEMON, "--config", "/dev/null", "--server-runtime-dir", self.top, "--pool-backend", "emu",
                   "--pool-capacity", "192MiB")
        wait_for(lambda: answers(self.attach), "fabricd")
        members = ", ".join(f'"{address_of(host)}:7411"' for host in HOSTS)
        (self.top / "data.toml").write_text(
            '[cache]\nmemory = "64MiB"\n[[silo]]\nat = "/web"\nfrom = "http://10.77.0.100/"\n'
            f'[peers]\nlisten = "{address_of(number)}:7411"\nmembers = [{members}]\ncopies = {COPIES}\nhead_start = "{HEAD_START}s"\n'
            f'authority = "{top}/ca.pem"\ncertificate = "{top}/{number}.pem"\nkey = "{top}/{number}.key"\n')
        self.start(stack, "serve", SERVICE, "serve", "--config", self.top / "data.toml", "--socket", self.socket, "--daemon",
                   self.attach)
        wait_for(lambda: answers(self.socket), "fabric-data serve: " + (self.top / "serve.log").read_text())
        os.environ["FABRIC_SOCKET"] = self.attach
        self.files = data.open("/web", socket=self.socket)

    def start(self, stack, what, *words):
        with open(self.top / f"{what}.log", "ab") as log:
            process = subprocess.Popen(["ip", "netns", "exec", f"{SPACE}-{self.number}", *map(str, words)], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, preexec_fn=die_with_parent)
        stack.callback(process.wait)
        stack.callback(process.kill)

    def read_all(self):
        """The longest read; each is what it should be."""
        longest = 0.0
        for name, content in FILES.items():
            begin = time.monotonic()
            found = self.files.read(name)
            longest = max(longest, time.monotonic() - begin)
            assert found == content, f"host {self.number}: {name} has other bytes"
        return longest

    def forget(self):
        run(SERVICE, "drop", "/web", "--socket", self.socket)


class Requests:
    def __init__(self, log):
        self.log = log

    def lines(self):
        return [tuple(line.split()) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def settled(self):
        """How many there were, when for a while there have been no more: what owners fetch is not waited for."""
        count, since = len(self.lines()), time.monotonic()
        while time.monotonic() - since < 1:
            time.sleep(0.05)
            if len(self.lines()) != count:
                count, since = len(self.lines()), time.monotonic()
        return count


def main():
    chunks = sum(-(-len(content) // CHUNK) for content in FILES.values())
    with contextlib.ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabric-peers-")))
        (top / "files").mkdir()
        for name, content in FILES.items():
            (top / "files" / name).write_bytes(content)
        make_network(stack)
        make_certificates(top)
        requests = Requests(top / "requests")
        web = subprocess.Popen(["ip", "netns", "exec", SPACE, sys.executable, __file__, str(top / "files"), str(requests.log)],
                               preexec_fn=die_with_parent)
        stack.callback(web.wait)
        stack.callback(web.kill)
        wait_for(lambda: subprocess.run(["ip", "netns", "exec", SPACE, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/80"],
                                        capture_output=True, check=False).returncode == 0, "the web server")
        hosts = [Host(stack, top, number) for number in HOSTS]
        assert all(len(host.files) == len(FILES) for host in hosts), [len(host.files) for host in hosts]

        hosts[0].read_all()
        first = requests.settled()
        by_chunk = collections.Counter((path, chunk) for _, path, chunk in requests.lines())
        # The first owner alone; on a busy machine it may take longer than it lets the others wait.
        assert len(by_chunk) == chunks and max(by_chunk.values()) <= COPIES + 1, by_chunk
        assert first <= 1.5 * chunks, by_chunk
        assert len(set(requests.lines())) == first, "a host asked for a chunk twice"

        hosts[1].read_all()
        hosts[2].read_all()
        later = requests.settled() - first
        # Each chunk is in at least two of three caches by now; a busy machine may lose some head starts.
        assert later <= chunks // 3, f"{later} of {chunks} chunks came from the web server again"

        # The third host's cable is cut: packets vanish, nothing refuses.
        run("ip", "-n", SPACE, "link", "set", "p3", "down")
        hosts[0].forget()
        longest = hosts[0].read_all()
        cut = requests.settled() - first - later
        assert longest < HEAD_START + 5, f"a read took {longest:.2f} s"
        run("ip", "-n", SPACE, "link", "set", "p3", "up")
        hosts[2].read_all()

        # Without the web server what peers have stays readable.
        web.kill()
        hosts[1].forget()
        readable = 0
        for name, content in FILES.items():
            try:
                found = hosts[1].files.read(name)
            except fabricshm.FabricError:
                continue  # neither of the two others has it
            assert found == content, f"{name} has other bytes without the web server"
            readable += 1
        assert readable >= len(FILES) // 2, f"{readable} of {len(FILES)} files are readable without the web server"
        print(f"{chunks} chunks: {first} requests to the web server for the first host and the owners, {later} for the two others, "
              f"{cut} with a host cut off (longest read {longest * 1e3:.0f} ms); {readable} of {len(FILES)} files without the server")


if __name__ == "__main__":
    main()
