#!/usr/bin/env python3
"""Fetches over shaped links: as the chosen codec against raw, in turns.

Two network namespaces joined by a veth pair, each end behind a token bucket (tc tbf); a daemon in
one, forebay-path-bench in the other; and the same over shared memory, on this host. For each of 20
settings (link speed or shared memory, and quality contract) one line: the codec chosen, its ratio,
the time of a fetch as a share of raw's. Fails where a fetch is over 3% slower than raw, and where a
shaped one at 1 or 10 Gbit/s takes more than 1 / (0.8 * ratio) of it.

    shaped_paths.py [--rounds=N] [--json] [--only=TEXT]      FOREBAY_BIN: the folder of the programs

Needs root and iproute2.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

CONTRACTS = ["exact", "near", "near/fair", "coarse"]
# Gbit/s of the link, MiB that are fetched over it.
LINKS = [(0.2, 8), (1, 32), (10, 128), (25, 256)]
CLONE_NEWNET = 0x40000000
ADDRESS = "10.97.0.1"


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class Link:
    """Two network namespaces, near and far, and the shaped link between them."""

    def __init__(self):
        self.near = f"fb{os.getpid()}n"
        self.far = f"fb{os.getpid()}f"

    def __enter__(self):
        for name in (self.near, self.far):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", "v0", "netns", self.far, "type", "veth", "peer", "name", "v0",
            "netns", self.near)
        for name, address in ((self.far, ADDRESS), (self.near, "10.97.0.2")):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "v0")
            run("ip", "-n", name, "link", "set", "v0", "up")
        return self

    def __exit__(self, *_):
        for name in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def shape(self, gbit):
        # A burst of a millisecond, and a queue of 20.
        burst = max(int(gbit * 1e9 / 8 * 0.001), 64 * 1024)
        for name in (self.near, self.far):
            run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "v0", "root", "tbf",
                "rate", f"{int(gbit * 1000)}mbit", "burst", str(burst), "latency", "20ms")


def enter(name):
    """Moves this thread into a network namespace: sockets that it makes are of that one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}", "rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass  # the other direction has closed them
    source.close()
    sink.close()


def forward(near, far, port, ready):
    """The control plane stays on loopback, so it is carried from one namespace to the other."""
    enter(near)
    listener = socket.create_server(("127.0.0.1", port))
    enter(far)
    ready.set()
    while True:
        here, _ = listener.accept()
        there = socket.create_connection(("127.0.0.1", port))
        for ends in ((here, there), (there, here)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


class Daemon:
    def __init__(self, folder, prefix, address, port):
        config = f"""node: "shaped"
control_address: "127.0.0.1:{port}"
data_plane {{
  tcp_address: "{address}:0"
  local_socket: "{folder}/{port}.sock"
  insecure_fabric_acknowledged: true
}}
dram {{ capacity_bytes: 2147483648 }}
"""
        path = f"{folder}/{port}.textproto"
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        ready = f"{folder}/{port}.ready"
        if os.path.exists(ready):
            os.unlink(ready)
        self.process = subprocess.Popen(
            [*prefix, f"{BIN}/forebayd", "--config", path, "--ready_file", ready],
            stderr=open(f"{folder}/{port}.log", "w", encoding="utf-8"))
        for _ in range(200):
            if os.path.exists(ready) and os.path.getsize(ready) > 0:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the daemon is not ready: {folder}/{port}.log")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def measure(prefix, port, path, contract, mib, rounds):
    result = subprocess.run(
        [*prefix, f"{BIN}/forebay-path-bench", "--daemon", f"127.0.0.1:{port}", "--path", path,
         "--quality", contract, "--mib", str(mib), "--rounds", str(rounds)],
        check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)


def report(name, contract, got, shaped, as_json):
    allowed = 1.03
    if shaped:
        allowed = min(allowed, 1 / (0.8 * got["ratio"]) if got["ratio"] > 1.25 else allowed)
    ok = got["share"] <= allowed
    got.update(setting=name, contract=contract, allowed=round(allowed, 4), ok=ok)
    if as_json:
        print(json.dumps(got), flush=True)
    else:
        print(f"{name:14} {contract:10} {got['codec']:14} at {got['gbit_per_s']:7.2f} Gbit/s  ratio {got['ratio']:5.2f}  "
              f"raw {got['raw_ms']:8.1f} ms  coded {got['codec_ms']:8.1f} ms  "
              f"share {got['share']:.3f} (model {got['model_share']:.3f}, at most {allowed:.3f})  "
              f"{'ok' if ok else 'TOO SLOW'}", flush=True)
    return ok


def main(arguments):
    rounds, as_json, only = 5, False, ""
    for argument in arguments:
        if argument.startswith("--rounds="):
            rounds = int(argument.partition("=")[2])
        elif argument.startswith("--only="):
            only = argument.partition("=")[2]
        elif argument == "--json":
            as_json = True
        else:
            sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("shaped_paths: needs root, for network namespaces")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="forebay-paths.") as folder, Link() as link:
        port = 17400 + os.getpid() % 1000
        ready = threading.Event()
        threading.Thread(target=forward, args=(link.near, link.far, port, ready),
                         daemon=True).start()
        ready.wait(10)
        # A daemon for each setting, so that none evicts what another published.
        for gbit, mib in LINKS:
            link.shape(gbit)
            for contract in CONTRACTS:
                name = f"{gbit} Gbit/s"
                if only and only not in f"{name} {contract}":
                    continue
                with Daemon(folder, ["ip", "netns", "exec", link.far], ADDRESS, port):
                    got = measure(["ip", "netns", "exec", link.near], port, "tcp", contract, mib,
                                  rounds)
                failed += not report(name, contract, got, gbit in (1, 10), as_json)
        for contract in CONTRACTS:
            if only and only not in f"shared memory {contract}":
                continue
            with Daemon(folder, [], "127.0.0.1", port + 1000):
                got = measure([], port + 1000, "local", contract, 256, rounds)
            failed += not report("shared memory", contract, got, False, as_json)
    if failed:
        sys.exit(f"shaped_paths: {failed} settings are too slow")


BIN = os.environ.get("FOREBAY_BIN", "")
if __name__ == "__main__":
    main(sys.argv[1:])
