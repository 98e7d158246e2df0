#!/usr/bin/python3
"""An owner of a pool and its guest, over TCP with certificates, in one cluster of etcd: what becomes of the
memory when the guest's lease runs out. shared_pool_test.py is the same pair without a cluster."""

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from shared_pool_test import WORLD, Host, Ranks, proof_of, used, wait_until

NEW_KEY = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def openssl(folder, *words):
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_authority(folder, name):
    openssl(folder, *NEW_KEY, "-x509", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def make_certificate(folder, authority, file, host, common_name=None):
    with open(os.path.join(folder, file + ".names"), "w") as names:
        names.write(f"subjectAltName=DNS:{host},IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl(folder, *NEW_KEY, "-subj", f"/CN={common_name or host}", "-keyout", f"{file}.key",
            "-out", f"{file}.csr")
    openssl(folder, "openssl", "x509", "-req", "-days", "2", "-in", f"{file}.csr", "-CA", f"{authority}.pem",
            "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", f"{file}.names", "-out", f"{file}.pem")


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start_etcd(folder, client, peer):
    urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    log = open(os.path.join(folder, "etcd.log"), "ab")
    return subprocess.Popen(
        ["etcd", "--name", "one", "--data-dir", os.path.join(folder, "etcd"), "--listen-client-urls", urls[0],
         "--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
         "--initial-cluster", f"one={urls[1]}"], stdout=log, stderr=log)


def tls(folder, file, authority="ca"):
    return (f"--cluster-tls-ca={folder}/{authority}.pem", f"--cluster-tls-cert={folder}/{file}.pem",
            f"--cluster-tls-key={folder}/{file}.key")


def host_of(daemon, name):
    for host in daemon.json("hosts")["hosts"]:
        if host["name"] == name:
            return host
    return {}


def state_of(daemon, name):
    return host_of(daemon, name).get("state")


def check_sums(owner, guest):
    ranks = Ranks(owner, guest, "sums")
    assert ranks.ask("sum") == [10.0] * WORLD
    assert sorted(session["host"] for session in owner.sessions()) == ["", "", "guest", "guest"]
    ranks.end()
    wait_until(lambda: used(owner) == 0, "memory of ranks that have ended")


def leave_at_owner(owner, ranks):
    for kind, text in ranks.ask("sum", [0, 1]):
        assert kind == "PeerError", text
    for rank in (0, 1):
        ranks.ask("leave", [rank])
        ranks.children[rank].join(30)


def check_guest_that_was_stopped(owner, guest):
    ranks = Ranks(owner, guest, "stopped")
    incarnation = host_of(owner, "guest")["incarnation"]
    before = used(owner)
    guest.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: state_of(owner, "guest") == "lost", "a host whose lease has run out")
        leave_at_owner(owner, ranks)
        assert used(owner) == before, "memory that a lost host may write to was given back"
        assert all(ranks.children[rank].is_alive() for rank in (2, 3))
    finally:
        guest.process.send_signal(signal.SIGCONT)
    for rank in (2, 3):
        ranks.children[rank].join(30)
        assert ranks.children[rank].exitcode == -signal.SIGKILL, ranks.children[rank].exitcode
    wait_until(lambda: used(owner) == 0, "memory of a host that has fenced itself")
    wait_until(lambda: state_of(owner, "guest") == "up", "the guest is a host again")
    assert host_of(owner, "guest")["incarnation"] != incarnation
    check_sums(owner, guest)


def check_guest_that_is_fenced_by_command(folder, owner, guest):
    ranks = Ranks(owner, guest, "fenced")
    before = used(owner)
    guest.kill()
    ranks.kill(2, 3)
    wait_until(lambda: state_of(owner, "guest") == "lost", "a host whose lease has run out")
    leave_at_owner(owner, ranks)
    assert used(owner) == before, "memory of a host that is not fenced was given back"
    open(os.path.join(folder, "power-is-off"), "w").close()
    wait_until(lambda: used(owner) == 0, "memory of a host that the command has fenced")
    guest.start().wait()
    check_sums(owner, guest)


def check_files(folder, address):
    """What is wrong with a file of certificates ends the start, by its key."""
    for options, words in (
            ((*tls(folder, "guest")[:2], f"--cluster-tls-key={folder}/owner.key"),
             f'cluster.tls_key: "{folder}/owner.key": is not the key of cluster.tls_cert, "{folder}/guest.pem"'),
            ((*tls(folder, "guest")[:2], f"--cluster-tls-key={folder}/proof"), f'cluster.tls_key: "{folder}/proof": has no PRIVATE KEY'),
            (tls(folder, "guest")[:2], "cluster.tls_ca and cluster.tls_cert without cluster.tls_key")):
        bad = subprocess.run(Host(folder, "bad", f"--pool-owner={address}", *options).command, capture_output=True,
                             text=True, timeout=30)
        assert bad.returncode == 2 and words in bad.stderr, bad.stderr


def check_certificates(folder, address, owner):
    for file, word, word_at_owner in (
            # The common name is the guest's, the subjectAltName another host's: that one counts.
            ("misnamed", "its certificate has no name guest", "its certificate has no name guest"),
            ("foreign", "or refuses the certificate: ", "a peer's certificate is refused")):
        bad = Host(folder, file, f"--pool-owner={address}", "--cluster-host-name=guest", *tls(folder, file)).start()
        try:
            bad.wait()
            wait_until(lambda: word in str(bad.json("status")["status"].get("alarms", "")), f"{file} as an alarm")
            assert owner.sessions() == [] and "as guests of" in bad.text()
            # Once, though the guest tries again and again.
            wait_until(lambda: word_at_owner in owner.text(), f"{file} in the owner's log")
            assert owner.text().count(word_at_owner) == 1, owner.text()
        finally:
            bad.kill()


def main():
    if not shutil.which("etcd") or not shutil.which("openssl"):
        print("etcd or openssl is not installed: skipped")
        return 77
    with tempfile.TemporaryDirectory(prefix="fabric-shared-") as folder:
        with open(os.path.join(folder, "device"), "wb") as device:
            device.truncate(256 << 20)
        with open(os.path.join(folder, "proof"), "w") as proof:
            proof.write(proof_of(folder + "/device"))
        make_authority(folder, "ca")
        make_authority(folder, "other")
        for authority, file, host in (("ca", "owner", "owner"), ("ca", "guest", "guest"),
                                      ("ca", "misnamed", "else"), ("other", "foreign", "guest")):
            make_certificate(folder, authority, file, host, "guest" if file == "misnamed" else None)
        client, peer, port = free_ports(3)
        address = f"127.0.0.1:{port}"
        cluster = (f"--cluster-etcd=http://127.0.0.1:{client}", "--cluster-ttl=2s")
        # It fails until the test says that the host has no power, and is called again by the owner.
        fence = f"--cluster-fence-command=test $FABRIC_FENCE_HOST = guest && test -e {folder}/power-is-off"
        etcd = start_etcd(folder, client, peer)
        owner = Host(folder, "owner", f"--cluster-listen={address}", fence, *cluster, *tls(folder, "owner"))
        guest = Host(folder, "guest", f"--pool-owner={address}", *cluster, *tls(folder, "guest"))
        try:
            owner.start().wait()
            check_files(folder, address)
            check_certificates(folder, address, owner)
            guest.start().wait()
            for check in (lambda: check_sums(owner, guest), lambda: check_guest_that_was_stopped(owner, guest),
                          lambda: check_guest_that_is_fenced_by_command(folder, owner, guest)):
                began = time.monotonic()
                check()
                print(f"{time.monotonic() - began:.1f} s", flush=True)
            assert guest.stop() == 0, guest.text()
            assert owner.stop() == 0, owner.text()
        except BaseException:
            for host in (owner, guest):
                print(host.text() if host.process else "not started", file=sys.stderr)
            raise
        finally:
            for child in multiprocessing.active_children():
                child.kill()
            for process in (guest.process, owner.process, etcd):
                if process and process.poll() is None:
                    process.kill()
                    process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
