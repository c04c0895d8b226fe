"""Cases that people reported in public, with the numbers they gave and nothing else.

``settled`` cases have a cause that the thread established (a fix, a measurement, or a diagnosis that
the reporter accepted): the verdict must be the one expected. The others are plausible only: the
verdict must not be another one with confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest

from gpuwhy.interval import Interval
from gpuwhy.verdict import Verdict, judge

from .build import HOT_HOST, QUIET_HOST, facts, interval


@dataclass(frozen=True)
class Reported:
    """One case: what was seen, where it is told, and which verdicts ("healthy", "starving/copy") fit it."""

    name: str
    source: str
    seen: tuple[Interval, ...]
    fitting: frozenset[str]
    settled: bool
    profile: str

    def judge(self) -> list[Verdict]:
        return judge(self.seen, profile=self.profile)

    def fits(self, judged: Verdict) -> bool:
        return bool({judged.verdict, "/".join(judged.key)} & self.fitting)


def reported(
    name: str, source: str, *seen: Interval, fits: str, settled: bool = True, profile: str = "unknown"
) -> Reported:
    return Reported(name, source, seen, frozenset(fits.split()), settled, profile)


H100 = facts("NVIDIA H100 80GB HBM3", limit=700, default=700, sm_clock=1.98e9)
H100_PCIE = facts("NVIDIA H100 PCIe", limit=350, default=350, sm_clock=1.755e9)
GB300 = facts("NVIDIA GB300", limit=500, default=1400, sm_clock=2.07e9)
RTX_3090 = facts("NVIDIA GeForce RTX 3090", limit=315, default=350, sm_clock=1.695e9, memory_clock=9.501e9)
A100 = facts("NVIDIA A100-SXM4-80GB", limit=400, default=400, sm_clock=1.41e9)
IMAGE_SERVICE = "field report: image service before launch"
CLASSIFIERS = "field report: two-GPU image classification service"
# The reports give no card, and power as a share of its rating.
UNNAMED = facts("", limit=100, default=100)

# One process of the server at a full core.
one_core = partial(interval, **HOT_HOST)

CASES = (
    reported(
        "speech recognition from a single host process; copies of it in parallel gave 2.67 times the work",
        "https://github.com/sgl-project/sglang-omni/issues/921",
        one_core(
            facts("NVIDIA H200", limit=700, default=700),
            gpu_util_ratio=0.31,
            power_watts=155,
            sm=0.06,
            sm_occupancy_ratio=0.01,
            tensor=0.01,
            dram=0.05,
        ),
        fits="starving/host-serial",
    ),
    reported(
        "the same without the host",
        "https://github.com/sgl-project/sglang-omni/issues/921",
        interval(
            facts("NVIDIA H200", limit=700, default=700),
            gpu_util_ratio=0.31,
            power_watts=155,
            sm=0.06,
            sm_occupancy_ratio=0.01,
            tensor=0.01,
            dram=0.05,
        ),
        fits="starving/undetermined",
    ),
    reported(
        "one H100 at 375-480 MHz beside a peer at 1980, 86-87 degrees, the software thermal bit always set",
        "https://github.com/sgl-project/sglang/issues/39206",
        interval(
            H100,
            gpu_util_ratio=1.0,
            sm_clock_hertz=0.43e9,
            gpu_temperature_celsius=86.5,
            reasons={"sw-thermal": 1.0},
        ),
        fits="throttled/sw-thermal",
    ),
    reported(
        "a script had set 500 W on a card of 1400 W: 617 TFLOPS in place of 1600 and more at a locked clock",
        "https://github.com/facebookexperimental/triton/issues/2023",
        interval(
            GB300,
            gpu_util_ratio=1.0,
            power_watts=498,
            sm_clock_hertz=2.07e9,
            reasons={"sw-power-cap": 1.0},
        ),
        fits="throttled/power-cap",
    ),
    reported(
        "a rented H100 PCIe at 450-550 of 1755 MHz and 88 degrees at half its power; the provider's cooling failed",
        "https://matt.sh/cloud-gpu-thermal-throttling",
        interval(
            H100_PCIE, gpu_util_ratio=1.0, power_watts=175, sm_clock_hertz=0.5e9, gpu_temperature_celsius=88
        ),
        fits="throttled",
    ),
    reported(
        "decode at a chosen limit of 315 W: SM clock 11 % down, memory at full clock, decode as fast as before",
        "https://github.com/ashalliants/ninfer-3090/pull/72",
        interval(
            RTX_3090,
            gpu_util_ratio=0.98,
            power_watts=314,
            sm_clock_hertz=1.507e9,
            memory_clock_hertz=9.501e9,
            reasons={"sw-power-cap": 1.0},
        ),
        # Without memory activity nothing tells decode from compute; throttled it is not.
        fits="memory-bound healthy unknown",
    ),
    reported(
        "training with NCCL misconfigured: full utilisation at the power of an idle card",
        "https://github.com/QwenLM/Qwen/issues/970",
        interval(A100, gpu_util_ratio=1.0, power_watts=90),
        fits="pseudo-peak/spin-wait",
    ),
    *(
        reported(
            f"a 7B model for 128 clients: one core full, GPU-Util {util:.0%}; the scheduler is one thread",
            "https://github.com/vllm-project/vllm/issues/4806",
            one_core(A100, gpu_util_ratio=util),
            fits="starving unknown",
        )
        for util in (0.60, 0.75)
    ),
    reported(
        "small kernels on an RTX 3080, 8-30 % busy, hardly any memory access; replaying a graph gave 5.5 times",
        "https://github.com/ooples/AiDotNet.Tensors/issues/548",
        one_core(facts("NVIDIA GeForce RTX 3080"), gpu_util_ratio=0.19, memory_util_ratio=0.0),
        fits="starving/host-serial starving/launch-bound",
    ),
    reported(
        "images on a hard disk: mostly under 10 %, 55 % at best; a solid-state disk cured it",
        "https://github.com/nianticlabs/monodepth2/issues/157",
        interval(
            facts("NVIDIA GeForce RTX 2080 Ti"),
            gpu_util_ratio=0.08,
            **{**QUIET_HOST, "process_tree_blocked_ratio": 0.7, "host_pressure_io_ratio": 0.7},
        ),
        fits="starving/io-wait",
    ),
    reported(
        "no loader workers: 0-90 % in a sawtooth, mostly 0",
        "https://github.com/runa91/barc_release/issues/9",
        one_core(facts(""), series={"gpu_util_ratio": (0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.3, 0.0)}),
        fits="starving/host-serial",
    ),
    reported(
        "prefill split over PCIe: 9.4 GB/s received while the SMs are 96 % busy",
        "https://github.com/noonghunna/club-3090/issues/1098",
        interval(RTX_3090, gpu_util_ratio=0.96, pcie_receive_bytes_per_second=9.4e9, **HOT_HOST),
        fits="healthy pseudo-peak unknown",
    ),
    reported(
        "decode of the same: 0.48 GB/s, 62 %",
        "https://github.com/noonghunna/club-3090/issues/1098",
        interval(RTX_3090, gpu_util_ratio=0.62, pcie_receive_bytes_per_second=0.48e9, **HOT_HOST),
        fits="healthy memory-bound pseudo-peak starving unknown",
    ),
    reported(
        "a layer-wise split over eight T4: about 35 % each",
        "https://github.com/ggml-org/llama.cpp/issues/2638",
        *(
            one_core(facts("Tesla T4", limit=70, default=70, index=index), gpu_util_ratio=0.35)
            for index in range(8)
        ),
        fits="starving",
    ),
    reported(
        "a layer-wise split over four A100: about 25 % each",
        "https://github.com/huggingface/transformers/issues/33656",
        *(one_core(facts("NVIDIA A100-SXM4-80GB", index=index), gpu_util_ratio=0.25) for index in range(4)),
        fits="starving/peer-wait",
    ),
    reported(
        "a queue grew before a preprocessing step in Python; decoding on the GPU removed it",
        "https://github.com/triton-inference-server/server/issues/5317",
        interval(
            facts("Tesla T4", limit=70, default=70),
            gpu_util_ratio=0.2,
            **{
                **QUIET_HOST,
                "process_tree_cpu_cores": 6.0,
                "process_tree_busiest_worker_cores": 0.98,
                "process_tree_hottest_thread_cores": 0.3,
            },
        ),
        fits="starving/cpu-preprocess",
    ),
    reported(
        "a burn in FP32 with tensor activity 0 drew 580-650 of 700 W; here with the FP32 pipe seen at work",
        "https://github.com/huggingface/gpu-fryer/issues/4",
        interval(
            H100,
            gpu_util_ratio=1.0,
            graphics=1.0,
            sm=0.99,
            tensor=0.0,
            fp32=0.75,
            fp64=0.0,
            fp16=0.0,
            dram=0.05,
            power_watts=615,
        ),
        fits="healthy/compute-off-tensor",
    ),
    reported(
        "the same burn where only tensor activity was read",
        "https://github.com/huggingface/gpu-fryer/issues/4",
        interval(H100, gpu_util_ratio=1.0, graphics=1.0, sm=0.99, tensor=0.0, dram=0.05, power_watts=615),
        fits="healthy unknown",
    ),
    reported(
        "one GPU of eight at 0 %, the others at 100 % and the power of idle cards; a mismatched collective is suspected",
        "https://github.com/Theano/libgpuarray/issues/387",
        *(
            interval(
                facts("Tesla V100-SXM2-16GB", limit=300, default=300, index=index),
                gpu_util_ratio=0.0 if index == 7 else 1.0,
                power_watts=55,
                owners=(100 + index,),
            )
            for index in range(8)
        ),
        fits="pseudo-peak idle starving unknown",
        settled=False,
    ),
    reported(
        "four RTX 2080 Ti at 24-26 % and 80-93 of 250 W; another framework kept them at 97 %",
        "https://github.com/tensorflow/tensorflow/issues/52795",
        *(
            interval(
                facts("NVIDIA GeForce RTX 2080 Ti", limit=250, default=250, index=index),
                gpu_util_ratio=0.25,
                power_watts=87,
            )
            for index in range(4)
        ),
        fits="starving",
        settled=False,
    ),
    reported(
        "decode at 78 % and 205 of 250 W, as usual for this model",
        "https://github.com/abetlen/llama-cpp-python/issues/1674",
        interval(
            facts("NVIDIA A100-PCIE-40GB", limit=250, default=250), gpu_util_ratio=0.78, power_watts=205
        ),
        fits="healthy memory-bound unknown",
        settled=False,
    ),
    reported(
        "12 % busy at a fifth of the rated power, bandwidth under 30 %, CPU over 85 %, a third of the goal",
        IMAGE_SERVICE,
        interval(UNNAMED, gpu_util_ratio=0.12, sm=0.12, dram=0.25, power_watts=20, host_cpu_busy_ratio=0.87),
        fits="starving/cpu-preprocess",
    ),
    reported(
        "20-30 % with idle valleys every few hundred milliseconds while the CPU is full",
        CLASSIFIERS,
        interval(
            UNNAMED,
            series={"gpu_util_ratio": (0.6, 0.0, 0.5, 0.0, 0.4, 0.0)},
            power_watts=40,
            host_cpu_busy_ratio=0.97,
        ),
        fits="starving/cpu-preprocess",
    ),
    *(
        reported(
            f"99 % busy with tensor activity under 20 %, elementwise work, DRAM at {dram:.0%}",
            CLASSIFIERS,
            interval(
                UNNAMED,
                gpu_util_ratio=0.99,
                graphics=0.99,
                sm=0.9,
                tensor=0.15,
                fp64=0.0,
                fp32=0.1,
                fp16=0.0,
                dram=dram,
                sm_clock_hertz=1.5e9,
            ),
            fits=fits,
        )
        for dram, fits in ((0.30, "pseudo-peak"), (0.62, "memory-bound"))
    ),
    reported(
        "99 % busy and tensor activity under 20 %, with nothing else read",
        CLASSIFIERS,
        interval(UNNAMED, gpu_util_ratio=0.99, tensor=0.15),
        fits="pseudo-peak memory-bound unknown",
    ),
    *(
        reported(
            f"poor cooling: 90 % busy and more while the work falls, {reason}",
            CLASSIFIERS,
            interval(
                facts("", limit=100, default=100, sm_clock=1.7e9),
                gpu_util_ratio=0.93,
                sm_clock_hertz=1.1e9,
                reasons={reason: 0.6},
            ),
            fits=f"throttled/{reason}",
        )
        for reason in ("sw-thermal", "hw-thermal")
    ),
    reported(
        "low-latency serving of small batches at 25 %, goals met, threads mostly asleep",
        IMAGE_SERVICE,
        interval(
            UNNAMED,
            gpu_util_ratio=0.25,
            graphics=0.25,
            tensor=0.05,
            dram=0.1,
            **{**QUIET_HOST, "process_tree_hottest_thread_cores": 0.3},
        ),
        fits="idle/no-demand healthy",
        profile="latency",
    ),
    reported(
        "the same with more to do: 35 %, and a thread that is hot",
        IMAGE_SERVICE,
        one_core(UNNAMED, gpu_util_ratio=0.35, graphics=0.35, tensor=0.15, dram=0.1),
        fits="healthy unknown",
        profile="latency",
    ),
)


@pytest.mark.parametrize("case", [case for case in CASES if case.settled], ids=lambda case: case.name)
def test_settled_case(case: Reported) -> None:
    """The verdict is the one that the thread settled, on every GPU of the case."""
    for judged in case.judge():
        assert case.fits(judged), (judged.key, judged.reason)


@pytest.mark.parametrize("case", [case for case in CASES if not case.settled], ids=lambda case: case.name)
def test_plausible_case(case: Reported) -> None:
    """Nothing else is claimed with confidence where the thread left the cause open."""
    for judged in case.judge():
        assert case.fits(judged) or judged.confidence < 0.5
