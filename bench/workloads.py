"""Workloads with one known bottleneck, to judge and to record on a real GPU. Needs torch with CUDA.

    python bench/workloads.py gemm --seconds 20          run one
    python bench/workloads.py --list                     name, label and what it does
    python bench/workloads.py --record DIR [--only a,b]  run each and record it with `gpuwhy record`

The label is how a workload is built, not what its readings look like. `accept` lists verdicts that
count as right, since some loads lie on a border. Two-GPU workloads are left out on one GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

WARM_UP_S = 6.0
MIB = 1 << 20


@dataclass(frozen=True)
class Workload:
    run: Callable[[float], None]
    what: str
    labels: tuple[tuple[str, tuple[str, ...], str | None, tuple[str, ...]], ...]
    gpus: int = 1


WORKLOADS: dict[str, Workload] = {}


def workload(what: str, *labels: tuple, gpus: int = 1):
    """Registers a function under its name; a label is (verdict, accepted verdicts, cause, accepted causes)."""

    def register(function: Callable[[float], None]) -> Callable[[float], None]:
        WORKLOADS[function.__name__] = Workload(function, what, labels, gpus)
        return function

    return register


def label(
    verdict: str, cause: str | None = None, *, accept: tuple[str, ...] = (), causes: tuple[str, ...] = ()
) -> tuple:
    return (verdict, (verdict, *accept), cause, (cause, *causes) if cause else ())


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def cuda(index: int = 0):
    import torch

    torch.cuda.set_device(index)
    return torch, torch.device("cuda", index)


def matrices(size: int = 8192, index: int = 0, dtype: str = "bfloat16"):
    torch, device = cuda(index)
    a = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    b = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    return torch, a, b


def spin(seconds: float) -> None:
    """Works in Python, as tokenising or collating does."""
    total = 0
    for _ in until(seconds):
        total += sum(range(200))


# --- one GPU, as the live check asks for ---------------------------------------------------------


@workload("nothing at all", label("idle", "free"))
def idle(seconds: float) -> None:
    time.sleep(seconds)


@workload("a context held, nothing runs", label("idle", "held", causes=("no-demand",)))
def held(seconds: float) -> None:
    torch, _ = cuda()
    keep = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    time.sleep(seconds)
    del keep


@workload("bf16 8192 GEMM back to back", label("healthy", "compute"))
def gemm(seconds: float) -> None:
    torch, a, b = matrices()
    for _ in until(seconds):
        for _ in range(20):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload("adds vectors of 4 GB", label("memory-bound", "bandwidth"))
def copy_kernel(seconds: float) -> None:
    torch, device = cuda()
    x = torch.zeros(1 << 30, device=device)
    y = torch.ones(1 << 30, device=device)
    for _ in until(seconds):
        for _ in range(10):
            torch.add(x, y, out=x)
        torch.cuda.synchronize()


@workload("60 ms of Python before each 20 ms of GEMM", label("starving", "host-serial"))
def starved(seconds: float) -> None:
    torch, a, b = matrices()
    for _ in until(seconds):
        spin(0.06)
        for _ in range(14):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload(
    "adds to 256 numbers, one kernel after the other",
    label("starving", "launch-bound", causes=("host-serial",)),
)
def tiny_kernels(seconds: float) -> None:
    torch, device = cuda()
    x = torch.zeros(256, device=device)
    for _ in until(seconds):
        for _ in range(1000):
            x.add_(1.0)
        torch.cuda.synchronize()


@workload("pinned copies host to device", label("starving", "copy"))
def pinned_copy(seconds: float) -> None:
    torch, device = cuda()
    source = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    for _ in until(seconds):
        for _ in range(20):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()


FMA = r"""
extern "C" __global__ void work(NUMBER *out, int rounds) {
  NUMBER a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
  for (int i = 0; i < rounds; i++) { STEP(a) STEP(b) STEP(c) STEP(d) }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}
"""


def raw_kernel(number: str, step: str, seconds: float) -> None:
    import cupy

    code = f"#define NUMBER {number}\n#define STEP(x) {step}\n{FMA}"
    kernel = cupy.RawKernel(code, "work")
    out = cupy.zeros(132 * 16 * 256, dtype={"double": "f8", "unsigned": "u4"}[number])
    for _ in until(seconds):
        for _ in range(4):
            kernel((132 * 16,), (256,), (out, 100_000 if number == "double" else 400_000))
        cupy.cuda.Device().synchronize()


@workload("FP64 multiply-add in registers", label("healthy", "compute-off-tensor"))
def fp64_loop(seconds: float) -> None:
    raw_kernel("double", "x = x * 1.0000001 + 0.5;", seconds)


@workload("one block of threads that counts cycles", label("pseudo-peak", "few-sms"))
def one_block(seconds: float) -> None:
    torch, _ = cuda()
    for _ in until(seconds):
        for _ in range(4):
            torch.cuda._sleep(50_000_000)  # noqa: SLF001
        torch.cuda.synchronize()


# --- one GPU, what the bundled recordings lack ---------------------------------------------------


@workload("integer hashing in registers", label("healthy", "compute-off-tensor"))
def integer_hash(seconds: float) -> None:
    raw_kernel("unsigned", "x ^= x << 13; x ^= x >> 17; x ^= x << 5;", seconds)


@workload(
    "a server at half its capacity: sleeps 50 ms, then 50 ms of GEMM",
    label("idle", "no-demand", accept=("healthy",)),
)
def half_demand(seconds: float) -> None:
    torch, a, b = matrices()
    for _ in until(seconds):
        time.sleep(0.05)
        for _ in range(35):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload("a server that is asked for a tenth of what it can do", label("idle", "no-demand"))
def little_demand(seconds: float) -> None:
    torch, a, b = matrices()
    for _ in until(seconds):
        time.sleep(0.09)
        for _ in range(6):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload(
    "a quarter of the time in Python between GEMM bursts (busy about 0.75)", label("healthy", "compute")
)
def gap25(seconds: float) -> None:
    torch, a, b = matrices()
    for _ in until(seconds):
        spin(0.02)
        for _ in range(42):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload("half of the time in Python between GEMM bursts (busy about 0.5)", label("starving", "host-serial"))
def gap50(seconds: float) -> None:
    torch, a, b = matrices()
    for _ in until(seconds):
        spin(0.04)
        for _ in range(28):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload("GEMM and vector adds by turns, no gaps", label("healthy", None, accept=("memory-bound",)))
def gemm_and_adds(seconds: float) -> None:
    torch, a, b = matrices()
    x = torch.zeros(1 << 29, device="cuda")
    for _ in until(seconds):
        for _ in range(10):
            torch.mm(a, b)
            torch.add(x, 1.0, out=x)
        torch.cuda.synchronize()


def in_processes(targets: list[tuple[Callable, tuple]]) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=arguments) for target, arguments in targets]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


@workload("two processes, both running GEMM", label("healthy", "compute"))
def two_gemm(seconds: float) -> None:
    in_processes([(gemm, (seconds,)), (gemm, (seconds,))])


@workload("two processes: one parked, one starved by its Python", label("starving", "host-serial"))
def parked_and_starved(seconds: float) -> None:
    in_processes([(held, (seconds,)), (starved, (seconds,))])


@workload(
    "0.4 s of GEMM, then a 2 GB checkpoint written and synced",
    label("starving", "io-wait", causes=("host-serial",)),
)
def checkpoint(seconds: float) -> None:
    torch, a, b = matrices()
    state = torch.empty(2 << 30, dtype=torch.uint8, pin_memory=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("GPUWHY_SCRATCH")) as folder:
        for _ in until(seconds):
            for _ in range(280):
                torch.mm(a, b)
            torch.cuda.synchronize()
            with (Path(folder) / "state").open("wb", buffering=0) as file:
                file.write(memoryview(state.numpy()))
                os.fsync(file.fileno())


def serve(port: int, rate: float, seconds: float) -> None:
    """Sends to whoever connects, ``rate`` bytes a second."""
    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(60)
    peer, _ = listener.accept()
    block = bytes(MIB)
    start, sent = time.monotonic(), 0
    with contextlib.suppress(OSError):
        while time.monotonic() < start + seconds + 30:
            peer.sendall(block)
            sent += len(block)
            time.sleep(max(0.0, start + sent / rate - time.monotonic()))


@workload(
    "batches of 64 MB over a socket at 60 MB/s, a little GEMM for each",
    label("starving", "io-wait", accept=("idle",), causes=("undetermined", "no-demand")),
)
def network_load(seconds: float) -> None:
    sender = multiprocessing.get_context("spawn").Process(
        target=serve, args=(29517, 60e6, seconds), daemon=True
    )
    sender.start()
    torch, a, b = matrices(4096)
    for _ in range(200):
        try:
            peer = socket.create_connection(("127.0.0.1", 29517))
            break
        except OSError:
            time.sleep(0.1)
    batch = bytearray(64 * MIB)
    for _ in until(seconds):
        view = memoryview(batch)
        while view:
            view = view[peer.recv_into(view) :]
        torch.frombuffer(batch, dtype=torch.uint8).cuda()
        torch.mm(a, b)
        torch.cuda.synchronize()
    peer.close()
    sender.terminate()


def pictures() -> list[bytes]:
    import numpy as np
    from PIL import Image

    images = []
    for seed in range(8):
        pixels = np.random.default_rng(seed).integers(0, 255, (512, 512, 3), dtype="uint8")
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG")
        images.append(buffer.getvalue())
    return images


@workload(
    "eight threads of the process decode JPEGs",
    label("starving", "cpu-preprocess", causes=("host-serial", "host-contention")),
)
def decode_threads(seconds: float) -> None:
    import numpy as np
    from PIL import Image

    torch, device = cuda()
    images = pictures()
    ready: list = []
    lock = threading.Lock()

    def decode() -> None:
        for _ in until(seconds + 5):
            pixels = [
                np.asarray(Image.open(io.BytesIO(image)).convert("RGB").resize((224, 224)))
                for image in images
            ]
            with lock:
                ready.append(np.stack(pixels))

    for _ in range(8):
        threading.Thread(target=decode, daemon=True).start()
    weights = torch.randn(3 * 224 * 224, 1000, device=device)
    for _ in until(seconds):
        with lock:
            batch = ready.pop() if ready else None
        if batch is None:
            time.sleep(0.002)
            continue
        torch.mm(torch.from_numpy(batch).to(device).float().reshape(8, -1), weights)
        torch.cuda.synchronize()


@workload(
    "asks a flag in a tight loop, as a busy-polling server without requests",
    label("idle", "no-demand", accept=("starving", "unknown"), causes=("held", "host-serial")),
)
def poll_user(seconds: float) -> None:
    torch, _ = cuda()
    torch.cuda.synchronize()
    flag = threading.Event()
    for _ in until(seconds):
        flag.is_set()


@workload("copies the next batch while GEMM runs", label("healthy", "compute"))
def prefetch(seconds: float) -> None:
    torch, a, b = matrices()
    source = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    for _ in until(seconds):
        with torch.cuda.stream(side):
            target.copy_(source, non_blocking=True)
        for _ in range(4):
            torch.mm(a, b)
        torch.cuda.synchronize()


@workload(
    "a small transformer decodes one token at a time in a CUDA graph",
    label("pseudo-peak", None, accept=("memory-bound", "starving", "unknown")),
)
def graph_decode(seconds: float) -> None:
    torch, device = cuda()
    layers = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(48)]).to(
        device, torch.bfloat16
    )
    x = torch.randn(1, 2048, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(3):
            layers(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layers(x)
        for _ in until(seconds):
            for _ in range(200):
                graph.replay()
            torch.cuda.synchronize()


# --- two GPUs --------------------------------------------------------------------------------------


@workload(
    "one process, two GPUs, one half of the model after the other",
    label("starving", "peer-wait"),
    label("starving", "peer-wait"),
    gpus=2,
)
def pipeline_turns(seconds: float) -> None:
    torch, a0, b0 = matrices(index=0)
    _, a1, b1 = matrices(index=1)
    for _ in until(seconds):
        for a, b, index in ((a0, b0, 0), (a1, b1, 1)):
            with torch.cuda.device(index):
                for _ in range(30):
                    torch.mm(a, b)
                torch.cuda.synchronize(index)


def ring_rank(rank: int, seconds: float, late: float) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29518"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    _, a, b = matrices(index=rank)
    gradients = torch.zeros(64 * MIB, device=f"cuda:{rank}")
    done = torch.zeros(1, device=f"cuda:{rank}")
    end = time.monotonic() + seconds
    while True:
        if rank == 0 and late:
            spin(late)
        for _ in range(40):
            torch.mm(a, b)
        dist.all_reduce(gradients)
        done.fill_(float(time.monotonic() > end))
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
        if done.item():
            break
    dist.destroy_process_group()


@workload(
    "data parallel: even ranks, GEMM and an all-reduce",
    label("healthy", "compute"),
    label("healthy", "compute"),
    gpus=2,
)
def ddp_even(seconds: float) -> None:
    in_processes([(ring_rank, (0, seconds, 0.0)), (ring_rank, (1, seconds, 0.0))])


@workload(
    "data parallel: rank 0 spends 0.3 s in Python before each step",
    label("starving", "host-serial"),
    label("pseudo-peak", "spin-wait"),
    gpus=2,
)
def ddp_late(seconds: float) -> None:
    in_processes([(ring_rank, (0, seconds, 0.3)), (ring_rank, (1, seconds, 0.3))])


def on_gpu_1(name: str, seconds: float) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    WORKLOADS[name].run(seconds)


@workload(
    "two unrelated jobs: vector adds on GPU 0, starved by Python on GPU 1",
    label("memory-bound", "bandwidth"),
    label("starving", "host-serial"),
    gpus=2,
)
def unrelated(seconds: float) -> None:
    in_processes([(copy_kernel, (seconds,)), (on_gpu_1, ("starved", seconds))])


# --- recording --------------------------------------------------------------------------------------


def start(name: str, seconds: float, env: dict[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, __file__, name, "--seconds", str(seconds)],
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )


def end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def add_labels(path: Path, name: str) -> None:
    with gzip.open(path, "rt") as file:
        header, *rows = file.read().splitlines()
    facts = json.loads(header)
    found = WORKLOADS[name]
    facts["what"] = found.what
    facts["labels"] = [
        {
            "gpu": gpu,
            "verdict": verdict,
            "accept": list(accept),
            "cause": cause,
            "accept_causes": list(causes),
        }
        for gpu, (verdict, accept, cause, causes) in enumerate(found.labels)
    ]
    with gzip.open(path, "wt") as file:
        file.write("\n".join([json.dumps(facts), *rows]) + "\n")


def record(folder: Path, names: list[str], seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        process = start(name, WARM_UP_S + seconds + 10)
        time.sleep(WARM_UP_S)
        path = folder / f"{name}.jsonl.gz"
        path.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "gpuwhy", "record", str(path), "--seconds", str(seconds), "--period", "0.25", "--workload", name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        alive = process.poll() is None
        end(process)
        if done.returncode or not alive:
            print(
                f"{name}: not recorded (record {done.returncode}, workload {'ran' if alive else 'ended early'}): {done.stderr[-300:]}"
            )
            continue
        add_labels(path, name)
        print(f"{name}: {path.stat().st_size} bytes", flush=True)
        time.sleep(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=sorted(WORKLOADS), help="workload to run")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--list", action="store_true", help="print them all")
    parser.add_argument("--record", type=Path, metavar="DIR", help="record each into DIR")
    parser.add_argument("--only", default="", help="comma-separated names for --record")
    parser.add_argument("--gpus", type=int, default=1, help="for --record: workloads for this many GPUs")
    arguments = parser.parse_args()
    if arguments.record:
        names = (
            arguments.only.split(",")
            if arguments.only
            else [name for name, found in WORKLOADS.items() if found.gpus == arguments.gpus]
        )
        record(arguments.record, names, arguments.seconds)
    elif arguments.name:
        WORKLOADS[arguments.name].run(arguments.seconds)
    else:
        for name, found in WORKLOADS.items():
            wanted = ", ".join(
                f"{verdict}/{cause}" if cause else verdict for verdict, _, cause, _ in found.labels
            )
            print(f"{name:20} {wanted:36} {found.what}")


if __name__ == "__main__":
    main()
