"""torchrun on two hosts that only a network cable joins: network namespaces of this machine, with a rendezvous by c10d.

python -m tests.distributed.two_hosts -m vlhmm eval MODEL TEXT --json

It needs root, and `ip` (iproute2 of Debian). What both hosts print goes to stdout and stderr.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.distributed.launch import ROOT

NETWORK = "10.231.47"
PORT = 29_517


def missing() -> str | None:
    """Why there can be no two hosts here; None: there can."""
    if shutil.which("ip") is None:
        return "there is no `ip`: apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with two_hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"


@contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """The names of two network namespaces with one cable between them; both are gone afterwards."""
    tag = secrets.token_hex(3)
    hosts, ends = (f"vlhmm-{tag}-0", f"vlhmm-{tag}-1"), (f"v{tag}0", f"v{tag}1")
    try:
        for host in hosts:
            _ip("netns", "add", host)
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (host, end) in enumerate(zip(hosts, ends, strict=True)):
            _ip("link", "set", end, "netns", host, "name", "eth0")
            _ip("-n", host, "address", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host, "link", "set", device, "up")
        yield hosts
    finally:
        for host in hosts:
            # With it goes its end of the cable, and the other end.
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", host)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def on_two_hosts(*program: str, ranks: int = 1, seconds: float = 120) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of torchrun on each host, with so many ranks on each."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "OMP_NUM_THREADS": "1",
        # The name of this machine leads to none of the two.
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    with two_hosts() as hosts:
        started = []
        for number, host in enumerate(hosts):
            launch = ["--nnodes=2", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-id=two-hosts"]
            launch += [f"--rdzv-endpoint={NETWORK}.1:{PORT}", f"--local-addr={NETWORK}.{number + 1}"]
            # torchrun tells by its own name which host the rendezvous is on; here both have one name.
            launch += [f"--rdzv-conf=is_host={int(number == 0)}"]
            command = ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run", *launch, *program]
            started.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        try:
            told = [one.communicate(timeout=seconds) for one in started]
            return [(one.returncode, *streams) for one, streams in zip(started, told, strict=True)]
        finally:
            for one in started:
                one.kill()
                one.wait()


if __name__ == "__main__":
    reason = missing()
    if reason is not None:
        sys.exit(reason)
    for number, (status, out, errors) in enumerate(on_two_hosts(*sys.argv[1:])):
        print(f"host {number}: status {status}")
        print(out, end="")
        print(errors, end="", file=sys.stderr)
