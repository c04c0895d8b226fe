"""A dcgm-exporter for tests: recordings as its text, and a server on loopback for any answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from gpuwhy.source.dcgm_fields import FIELDS

from .fake_nvml import FakeGpu

MIB = 2**20

FULL = tuple(each.name for each in FIELDS)
# What dcgm-exporter's own counters file has since 4.0, of the fields that are read and of others.
STOCK = (
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_MEM_CLOCK",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_ENC_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
)

# Field -> (key of a recorded row, factor to DCGM's unit); the second table is of GPM's means.
PLAIN: Mapping[str, tuple[str, float]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1),
    "DCGM_FI_DEV_MEM_CLOCK": ("mem_clock_mhz", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("event_reasons", 1),
    "DCGM_FI_DEV_MEMORY_TEMP": ("mem_temp_c", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temp_c", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power_mw", 1e-3),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("power_instant_mw", 1e-3),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_mj", 1),
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util_pct", 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util_pct", 1),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", 1 / MIB),
    "DCGM_FI_DEV_POWER_VIOLATION": ("sw_power_cap_ns", 1),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": ("sync_boost_ns", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": ("sw_thermal_ns", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": ("hw_thermal_ns", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": ("hw_power_brake_ns", 1),
}
MEANS: Mapping[str, tuple[str, float]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("graphics_util", 0.01),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_util", 0.01),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("sm_occupancy", 0.01),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("any_tensor_util", 0.01),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_bw_util", 0.01),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("fp64_util", 0.01),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("fp32_util", 0.01),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("fp16_util", 0.01),
    "DCGM_FI_PROF_PIPE_INT_ACTIVE": ("integer_util", 0.01),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("pcie_tx_mib_s", MIB),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx_mib_s", MIB),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx_mib_s", MIB),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx_mib_s", MIB),
}
DOUBLES = {each.name for each in FIELDS if not each.integer}
OTHERS = {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0, "DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_XID_ERRORS": 0}


class FakeExporter:
    """GPUs that live through recordings, as a dcgm-exporter with its engine would serve them.

    The engine polls each ``interval_s`` from when it was made, and profiling values are means since the
    poll before, so there are none until the second. ``counters`` is FULL, STOCK or names of FULL;
    ``holders`` gives "namespace/pod" by GPU. ``paused`` takes the profiling values away.
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu],
        clock: Callable[[], float],
        *,
        interval_s: float = 1.0,
        counters: Sequence[str] = FULL,
        holders: Mapping[int, str] | None = None,
    ) -> None:
        self.gpus = gpus
        self.clock = clock
        self.interval_s = interval_s
        self.counters = counters
        self.holders = dict(holders or {})
        self.paused = False
        self.scrapes = 0
        self.started_s = clock()

    def fetch(self, _url: str = "", _timeout_s: float = 0.0) -> str:
        """Stands in for ``exporter.fetch``, without a server."""
        self.scrapes += 1
        return self.text()

    def text(self) -> str:
        """What a scrape gets now."""
        polled_s = (self.clock() - self.started_s + 1e-9) // self.interval_s * self.interval_s
        values = [self._values(gpu, polled_s) for gpu in self.gpus]
        lines: list[str] = []
        for name in self.counters:
            shown = [
                f"{name}{{{self._labels(place)}}} {of_gpu[name]}"
                for place, of_gpu in enumerate(values)
                if name in of_gpu
            ]
            if shown:
                lines += [f"# HELP {name} {name} of a recording", f"# TYPE {name} gauge", *shown]
        return "".join(f"{line}\n" for line in lines)

    @contextmanager
    def served(self) -> Iterator[str]:
        """The url of a server that answers as this exporter."""

        def answer(connection: socket.socket) -> None:
            self.scrapes += 1
            connection.sendall(response(self.text()))

        with served(answer) as url:
            yield url

    def _labels(self, place: int) -> str:
        gpu = self.gpus[place]
        labels = {
            "gpu": place,
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.header["pci_bus_id"],
            "device": f"nvidia{place}",
            "modelName": gpu.header["name"],
            "Hostname": "node-1",
            "DCGM_FI_DRIVER_VERSION": gpu.driver,
        }
        if place in self.holders:
            namespace, _, pod = self.holders[place].partition("/")
            labels |= {"container": "main", "namespace": namespace, "pod": pod}
        return ",".join(f'{name}="{value}"' for name, value in labels.items())

    def _values(self, gpu: FakeGpu, polled_s: float) -> dict[str, str]:
        row = gpu.at(polled_s)
        row.setdefault("power_limit_mw", gpu.header["power_limit_w"] * 1000)
        used, total = row.get("memory_used_bytes"), gpu.header["memory_total_bytes"]
        found: dict[str, float | None] = {**OTHERS}
        found["DCGM_FI_DEV_FB_FREE"] = None if used is None else (total - used) / MIB
        for table, source in (
            ({**PLAIN, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_mw", 1e-3)}, row),
            (MEANS, {} if self.paused or polled_s <= 0 else gpu.window(polled_s - self.interval_s, polled_s)),
        ):
            for name, (raw, factor) in table.items():
                value = source.get(raw)
                found[name] = None if value is None else value * factor
        return {
            name: f"{value:f}" if name in DOUBLES else f"{int(value)}"
            for name, value in found.items()
            if value is not None
        }


def response(text: str, *head: str, status: str = "200 OK", kind: str = "text/plain; charset=utf-8") -> bytes:
    """An HTTP response with a length, and ``head`` lines of its own."""
    body = text.encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", f"Content-Type: {kind}", *head, "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def served(answer: Callable[[socket.socket], None], requests: list[bytes] | None = None) -> Iterator[str]:
    """The url of a server on loopback that reads each request and lets ``answer`` have the connection.

    One connection after the other; ``requests`` gets what was read of each. TLS is not spoken.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    request = b""
                    while (
                        not request.startswith(b"\x16")
                        and b"\r\n\r\n" not in request
                        and (piece := connection.recv(65536))
                    ):
                        request += piece
                    if requests is not None:
                        requests.append(request)
                    answer(connection)

        thread = threading.Thread(target=run, name="fake-exporter", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes accept()
            thread.join(5)
            assert not thread.is_alive(), "the server's last connection was not let go"
