#!/usr/bin/env python3
"""Measures Mooncake Store over TCP on this machine, for forebay-bench to stand beside.

    mooncake_peer.py --seconds 1.0 --sizes 65536,262144 [--no-pool]

Needs the package mooncake-transfer-engine-non-cuda. Starts a master and one process that owns the
memory, both on loopback; this process owns none, so that every byte crosses loopback once. Prints lines
"name size value unit": put, get, put_batch, get_batch in GB/s (1e9 bytes; batches of 16), exist_128 in
microseconds for 128 keys. Every object that is read is compared.
"""

import argparse
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time

BATCH = 16
SEGMENT = 1536 << 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def store(port, segment, local):
    from mooncake.store import MooncakeDistributedStore
    s = MooncakeDistributedStore()
    code = s.setup(f"127.0.0.1:{free_port()}", "P2PHANDSHAKE", segment, local, "tcp", "",
                   f"127.0.0.1:{port}")
    if code != 0:
        raise RuntimeError(f"setup gave {code}")
    return s


def owner(port):
    keep = store(port, SEGMENT, 16 << 20)
    print("owner ready", flush=True)
    sys.stdin.read()
    keep.close()


def for_seconds(seconds, call):
    """GB/s of calls that return their bytes."""
    total, start = 0, time.perf_counter()
    while True:
        total += call()
        taken = time.perf_counter() - start
        if taken >= seconds:
            return total / taken / 1e9


class Client:
    def __init__(self, port):
        self.store = store(port, 0, 64 << 20)
        self.bytes = 512 << 20
        self.memory = ctypes.create_string_buffer(self.bytes)
        self.base = ctypes.addressof(self.memory)
        for at in range(0, self.bytes, 4096):
            ctypes.memset(self.base + at, (at >> 12) & 0xFF, 4096)
        if self.store.register_buffer(self.base, self.bytes) != 0:
            raise RuntimeError("register_buffer failed")
        self.serial = 0

    def fresh(self, count):
        self.serial += count
        return [f"k{self.serial - i}" for i in range(count)]

    def put(self, keys, size):
        half = self.bytes // 2
        at = [self.base + (i * size) % (half - half % size) for i in range(len(keys))]
        if len(keys) == 1:
            codes = [self.store.put_from(keys[0], at[0], size)]
        else:
            codes = self.store.batch_put_from(keys, at, [size] * len(keys))
        if any(c != 0 for c in codes):
            raise RuntimeError(f"put gave {codes}")
        return size * len(keys)

    def get(self, keys, size):
        half = self.bytes // 2
        at = [self.base + half + (i * size) % (half - half % size) for i in range(len(keys))]
        if len(keys) == 1:
            codes = [self.store.get_into(keys[0], at[0], size)]
        else:
            codes = self.store.batch_get_into(keys, at, [size] * len(keys))
        if any(c != size for c in codes):
            raise RuntimeError(f"get gave {codes}")
        return size * len(keys)

    def measure(self, size, seconds):
        room = max(BATCH, min(256, (SEGMENT // 4) // size))
        def put_rate(count):
            # Puts go on until the segment is half full, then the objects are removed, off the clock.
            total = taken = 0
            while taken < seconds:
                start = time.perf_counter()
                for _ in range(max(1, room // count)):
                    total += self.put(self.fresh(count), size)
                taken += time.perf_counter() - start
                self.store.remove_all(True) if takes_force(self.store) else self.store.remove_all()
                time.sleep(0.05)
            return total / taken / 1e9
        print("put", size, put_rate(1), "GB/s", flush=True)
        print("put_batch", size, put_rate(BATCH), "GB/s", flush=True)
        keys = self.fresh(room)
        for i in range(0, room, BATCH):
            self.put(keys[i:i + BATCH], size)
        turn = [0]

        def one():
            turn[0] += 1
            return self.get([keys[turn[0] % room]], size)

        def batch():
            turn[0] += 1
            first = (turn[0] * BATCH) % (room - room % BATCH)
            return self.get(keys[first:first + BATCH], size)
        print("get", size, for_seconds(seconds, one), "GB/s", flush=True)
        print("get_batch", size, for_seconds(seconds, batch), "GB/s", flush=True)
        self.get(keys[:1], size)
        half = self.bytes // 2
        if ctypes.string_at(self.base, size) != ctypes.string_at(self.base + half, size):
            raise RuntimeError("what came back is not what was put")
        self.store.remove_all(True) if takes_force(self.store) else self.store.remove_all()

    def measure_exist(self):
        keys = self.fresh(128)
        for i in range(0, 128, BATCH):
            self.put(keys[i:i + BATCH], 4096)
        times = []
        for _ in range(300):
            start = time.perf_counter()
            codes = self.store.batch_is_exist(keys)
            times.append(time.perf_counter() - start)
            if any(c != 1 for c in codes):
                raise RuntimeError(f"exist gave {codes}")
        times.sort()
        print("exist_128", 128, times[len(times) // 2] * 1e6, "us", flush=True)


def takes_force(s):
    return "force" in (s.remove_all.__doc__ or "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sizes", default="65536,262144,1048576,4194304")
    parser.add_argument("--no-pool", action="store_true", help="its default: a connection a transfer")
    parser.add_argument("--owner", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.no_pool:
        os.environ["MC_TCP_ENABLE_CONNECTION_POOL"] = "1"
    # Both sides are on one host: without this the client would copy instead of using TCP.
    os.environ["MC_STORE_MEMCPY"] = "0"
    os.environ.setdefault("GLOG_minloglevel", "2")
    if arguments.owner:
        return owner(arguments.owner)
    port, processes = free_port(), []
    master = shutil.which("mooncake_master", path=os.path.dirname(sys.executable)) or "mooncake_master"
    try:
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.append(subprocess.Popen(
            [master, f"-rpc_port={port}", f"-metrics_port={free_port()}",
             "-default_kv_lease_ttl=5000"], stdin=subprocess.DEVNULL, **quiet))
        time.sleep(1.5)
        command = [sys.executable, __file__, "--owner", str(port)]
        if arguments.no_pool:
            command.append("--no-pool")
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, text=True))
        for line in processes[1].stdout:
            if "owner ready" in line:
                break
        client = Client(port)
        for size in (int(s) for s in arguments.sizes.split(",")):
            client.measure(size, arguments.seconds)
        client.measure_exist()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    # Its destructor waits for a master that is gone.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
