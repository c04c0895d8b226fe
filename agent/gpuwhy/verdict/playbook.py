"""What to do about each verdict: one play per row of the vocabulary.

The order inside a play is the order that finds causes fastest: settle the verdict, record a
timeline, mend the feeding, and only then touch the graph and the precision.
To change advice, edit its row; a new cause in ``vocabulary.CAUSES`` needs a row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gpuwhy.verdict.types import CauseKey
from gpuwhy.verdict.vocabulary import (
    HEALTHY,
    IDLE,
    MEMORY_BOUND,
    PSEUDO_PEAK,
    STARVING,
    THROTTLED,
    UNKNOWN,
)

# One imperative sentence with one action. Commands stand in backticks and only look: what would
# change a host is said in words, after "if you own this host". {gpu} and {pid} are filled in later.
Step: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Play:
    """Advice for one (verdict, cause).

    ``steps`` are one to five, the quickest test of the verdict first; they may hold ``{gpu}``
    and ``{pid}``. ``confirm`` says which result of that first test settles it, ``when_normal``
    when the same evidence needs no action, ``source`` where the advice comes from.
    """

    verdict: str
    cause: str
    steps: tuple[Step, ...]
    when_normal: str
    confirm: str
    source: str

    @property
    def key(self) -> CauseKey:
        return (self.verdict, self.cause)


_IMAGE_SERVICE = "field report: image service before launch"
_CLASSIFIERS = "field report: two-GPU image classification service"
_H200 = "measured on H200"
_NSYS = "https://docs.nvidia.com/nsight-systems/UserGuide/index.html"
_NCU = "https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html"
_NVML_REASONS = "https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html"
_DCGM_PROFILING = "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html"
_DCGM_PAUSE = (
    "https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgmi/dcgmi-profile.html"
)
_XID = "https://docs.nvidia.com/deploy/xid-errors/index.html"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html"
_TORCH_NCCL = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
_PSI = "https://docs.kernel.org/accounting/psi.html"
_CGROUP = "https://docs.kernel.org/admin-guide/cgroup-v2.html"

# nsys traces CUDA in what it launches and does not attach to a running pid; without --kill=none it
# ends the program together with the recording. The delay leaves start-up and warm-up out.
_TIMELINE: Step = (
    "Record a timeline by launching the program under nsys, which cannot attach: "
    "`nsys profile -t cuda,nvtx,osrt,cublas,cudnn --sample=process-tree --delay=60 --duration=20 --kill=none -o gpuwhy python your_script.py`."
)
_KERNEL_TABLE: Step = (
    "Count kernels and their time for one step: "
    "`with torch.profiler.profile() as p: step()`, then `print(p.key_averages().table(sort_by='cuda_time_total'))`."
)
_API_TABLE: Step = (
    "If cudaMalloc leads `nsys stats --report cuda_gpu_kern_sum,cuda_api_sum gpuwhy.nsys-rep`, "
    "try `PYTORCH_ALLOC_CONF=expandable_segments:True` (older PyTorch: PYTORCH_CUDA_ALLOC_CONF)."
)
_RANDOM_BATCH: Step = "Feed one fixed random batch already on the GPU, 20 steps of warm-up and 200 timed, and compare GPU activity."
_CLOCK_QUERY = "`nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE,CLOCK -i {gpu}`"
_NEIGHBOURS = "`nvidia-smi --query-gpu=index,temperature.gpu,temperature.memory,clocks.sm,power.draw,fan.speed --format=csv`"
_LINK_QUERY = (
    "`nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max "
    "--format=csv -i {gpu}`"
)
_OWNERS = "`nvidia-smi --query-compute-apps=pid,used_memory --format=csv -i {gpu}`"
_DRAIN: Step = (
    "Move the job to another host until this one is mended: one slow GPU slows every peer of its job."
)
# Nsight Compute pins the clock of a shared GPU unless told not to.
_SPEED_OF_LIGHT = "`ncu --section SpeedOfLight --clock-control none --launch-skip 200 --launch-count 20 python your_script.py`"

PLAYBOOK: tuple[Play, ...] = (
    Play(
        STARVING,
        "cpu-preprocess",
        steps=(
            "See what the workers spend CPU on: `py-spy record --subprocesses -d 20 -p {pid} -o profile.svg`.",
            _RANDOM_BATCH,
            "Time decode, resize, augment, copy and forward apart over 50 batches; training-time augmentation has no place in serving.",
            "Move decode, resize and normalise to the GPU (DALI, nvJPEG, torchvision.transforms.v2), or precompute them offline.",
            "Raise DataLoader num_workers towards the allowed cores (`nproc`), with persistent_workers and pin_memory on.",
        ),
        when_normal="Busy workers are fine while the GPU stays full, and evaluation, the first minutes and epoch ends look like this for a while.",
        confirm="Confirmed if the profile is decoding, resizing, tokenising or collating and the random batch fills the GPU. "
        "If the GPU stays idle on random data the forward pass is at fault as well: a full CPU also delays the launching thread.",
        source=f"{_IMAGE_SERVICE} (stage times, augmentation left in); {_CLASSIFIERS} (idle valleys with the CPU full)",
    ),
    Play(
        STARVING,
        "host-serial",
        steps=(
            "See where the busy thread is, a few times over: `py-spy dump -p {pid}` (native code: `perf top -p {pid}`).",
            "Find hidden synchronisation with `torch.cuda.set_sync_debug_mode('warn')`, then take .item(), .cpu() and synchronize() out of the loop.",
            _TIMELINE,
            _API_TABLE,
            "Take tokenising, scheduling and logging off the launching thread, or run several data-parallel processes on this GPU.",
        ),
        when_normal="A hot host thread alone proves nothing: CUDA synchronisation spins, at healthy GPUs too. "
        "Low-latency serving with small batches at 20-30 % is fine when its goals hold.",
        confirm="Confirmed if the stacks show Python work or a synchronising call while the GPU has gaps; refuted if they sit in a wait for requests. "
        "The gain from removing .item() ranges from a few percent to a doubling: measure it.",
        source=f"{_IMAGE_SERVICE} (stray .item(), timeline first); {_CLASSIFIERS} (allocator stalls); {_H200} (spinning threads); {_NSYS}",
    ),
    Play(
        STARVING,
        "launch-bound",
        steps=(
            _KERNEL_TABLE,
            _TIMELINE,
            "Give each launch more work: raise the batch, or pad to a few fixed shapes (1, 4, 8, 16).",
            "With fixed shapes use CUDA graphs or `torch.compile(model, mode='reduce-overhead')`, then count kernels again: it can fall back silently.",
            "Fuse small operators (torch.compile, ONNX Runtime, TensorRT) and accept it only on agreement with real samples.",
        ),
        when_normal="Low-latency serving with small batches at 20-30 % is fine when its goals hold; start-up and compilation launch many small kernels too.",
        confirm="Confirmed if kernels average under about 10 us and their number times 3-10 us of launch is close to the step time; "
        "refuted if a few long kernels fill the step.",
        source=f"{_IMAGE_SERVICE} (launch cost); {_CLASSIFIERS} (CUDA graphs 0.8 to 0.15 ms, fusion 420 to 117 kernels)",
    ),
    Play(
        STARVING,
        "copy",
        steps=(
            "Read the PCIe rate while it runs: `nvidia-smi dmon -s t -i {gpu} -c 10` (MB/s).",
            f"Check the link's generation and width while busy, now and at most: {_LINK_QUERY}.",
            "Copy from pinned memory (pin_memory=True) with non_blocking=True on a stream of its own, one batch ahead.",
            "Copy less: send uint8 and convert on the GPU, keep weights and caches resident, join small copies.",
            "Find blocking and pageable copies in an nsys recording: `nsys analyze --rule cuda_memcpy_async gpuwhy.nsys-rep`.",
        ),
        when_normal="Loading a model or writing a checkpoint copies for a while, once. GPU-Util near 100 % with SM activity near 0 is what copies look like, not work.",
        confirm="Confirmed if rxpci or txpci holds gigabytes per second while SM activity is near 0; refuted if the rate is small, then the wait is elsewhere.",
        source=f"{_CLASSIFIERS} (pinned memory and own stream, 3.2 to 1.1 ms); {_H200} (GPU-Util during copies)",
    ),
    Play(
        STARVING,
        "io-wait",
        steps=(
            "Read the pressure: `cat /proc/pressure/io` (some avg10 above 15 means tasks wait for storage).",
            "See who reads and writes: `pidstat -d 1 10`.",
            "List the blocked tasks and what they wait in: `ps -eLo pid,tid,stat,wchan:32,comm | grep ' D'`.",
            "Stage a part of the data on local disk or in memory and repeat: if the gap goes, storage was the cause.",
            "Pack small files into shards, prefetch with more workers, and write checkpoints asynchronously.",
        ),
        when_normal="The first pass over a data set is cold, and checkpoints stop the GPU for seconds to minutes. Waits for a network do not count as I/O pressure.",
        confirm="Confirmed if pressure or blocked tasks go along with the gaps and local data removes them; refuted if local data changes nothing.",
        source=f"{_PSI}; public case: hard disk replaced by SSD cured GPU use under 10 % (nianticlabs/monodepth2 issue 157)",
    ),
    Play(
        STARVING,
        "host-contention",
        steps=(
            "Look for throttled periods (cgroup v2): `cat /sys/fs/cgroup$(grep ^0:: /proc/{pid}/cgroup | cut -d: -f3)/cpu.stat` (nr_throttled rising).",
            "See who else wants the CPUs: `cat /proc/pressure/cpu`, then `pidstat -u 1 5`.",
            "Measure the wait for a core, as root: `perf sched record -- sleep 5`, then `perf sched latency --sort max`.",
            "Cap library threads (OMP_NUM_THREADS, torch.set_num_threads) so that workers times threads fit the allowed cores.",
            "Raise the CPU request or quota to the loader workers plus one core for each GPU, or move the neighbour away.",
        ),
        when_normal="Waiting for a core costs nothing while the GPU stays full, and a few throttled periods at start are usual.",
        confirm="Confirmed if nr_throttled rises in the gaps or the GPU process shows long delays in the run queue; refuted if neither moves.",
        source=f"{_IMAGE_SERVICE} (a full CPU delays the launching thread); {_CGROUP}; {_PSI}",
    ),
    Play(
        STARVING,
        "peer-wait",
        steps=(
            "Watch all GPUs for a minute: `nvidia-smi dmon -s u -c 60`; turns show as one busy while the others idle.",
            "Read the verdict of the slowest peer first: a throttled or starving one holds all others.",
            "Look for a layer-wise split (device_map='auto', naive pipeline) and use tensor or data parallelism, or more micro-batches.",
            "Compare ranks: record each with torch.profiler and see who enters the collective last.",
            "Check how the GPUs are joined: `nvidia-smi topo -m`.",
        ),
        when_normal="Pipelines with few micro-batches and draft-and-verify pairs take turns by design; judge the sum over the peers.",
        confirm="Confirmed if the activities of the peers add up to about one GPU; refuted if all are idle together, then look for a common host cause.",
        source="public cases: naive pipeline over 8xT4 and 4xA100 (ggml-org/llama.cpp issue 2638, huggingface/transformers issue 33656)",
    ),
    Play(
        STARVING,
        "undetermined",
        steps=(
            "See which thread of the owner runs, waits or blocks: `top -H -b -n 1 -p {pid}`.",
            "See where it is: `py-spy dump --subprocesses -p {pid}`.",
            "Ask `gpuwhy doctor` which host signals are missing, and give it the host's /proc and cgroups.",
            _RANDOM_BATCH,
            _TIMELINE,
        ),
        when_normal="Evaluation, checkpoints and epoch ends leave gaps of minutes. A single reading of 0 % between short kernels proves nothing.",
        confirm="It stays a gap if activity over minutes is low with work waiting. With the random batch: a full GPU accuses the data path, an idle one the launching side.",
        source=f"{_IMAGE_SERVICE} (random data and kernel gaps settle most cases); {_NSYS}",
    ),
    Play(
        MEMORY_BOUND,
        "bandwidth",
        steps=(
            "Compare with the speed of light: bytes one step must move over the card's bandwidth, against the step time.",
            "Raise the batch as far as the latency goal allows, so that each weight read serves more samples or tokens.",
            "Move fewer bytes: FP8 or INT8 weights, quantised KV cache, grouped-query attention.",
            "Fuse chains of elementwise, norm and concat operators (torch.compile, TensorRT, fused attention).",
            f"See how near the top kernels are to the DRAM peak: {_SPEED_OF_LIGHT}.",
        ),
        when_normal="Normal for LLM decode, KV-cache reading, embedding look-up, broadcast and optimiser steps; tuning compute pays little. "
        "Power far below the limit and slack SMs are part of it, and a power cap costs it little.",
        confirm="Confirmed if the step time is at most about 1.5 times its bytes over the bandwidth; refuted if it is several times that, then kernels wait for latency.",
        source=f"{_IMAGE_SERVICE} (first decide illness or normal); {_CLASSIFIERS} (fusion, quantisation); {_H200}; {_NCU}",
    ),
    Play(
        THROTTLED,
        "hw-thermal",
        steps=(
            f"Read reasons, temperature and clock under load: {_CLOCK_QUERY}.",
            f"Compare with the neighbours: {_NEIGHBOURS}; one hot card is the card, all hot is the air.",
            "Read fans and inlet: `ipmitool sdr type Fan` and `ipmitool sdr type Temperature`.",
            "Tell the data-centre people host, slot, UUID, temperatures and since when; ask for inlet air, fans, filters and blanking panels.",
            _DRAIN,
        ),
        when_normal="A thermal bit on an idle GPU or in one sample at a change of state is nothing. GPU-Util stays above 90 % in this fault, so it shows nothing either.",
        confirm="Confirmed if HW Thermal Slowdown is active with the clock down and the temperature at its limit; refuted if the core is cool, then read the memory temperature.",
        source=f"{_CLASSIFIERS} (cooling: use stays 90 %, work per second falls); {_NVML_REASONS}",
    ),
    Play(
        THROTTLED,
        "sw-thermal",
        steps=(
            f"Read reasons, temperature and clock under load: {_CLOCK_QUERY}.",
            f"Compare with the neighbours, memory temperature too: {_NEIGHBOURS}.",
            "Read fans and inlet: `ipmitool sdr type Fan`; fans below full speed with hot cards mean the server's cooling setup.",
            "Tell the data-centre people host, slot, UUID, temperatures and since when; ask for fan policy, inlet air and blanking panels.",
            _DRAIN,
        ),
        when_normal="Short spells with the clock above 0.85 of its maximum cost little; a thermal bit on an idle GPU is nothing.",
        confirm="Confirmed if SW Thermal Slowdown is active and the temperature sits at its target while the clock is down; refuted if only SW Power Cap is active.",
        source=f"{_CLASSIFIERS} (cooling); public cases: one of two H100 at 375-480 MHz and 87 C (sgl-project/sglang issue 39206); {_NVML_REASONS}",
    ),
    Play(
        THROTTLED,
        "power-brake",
        steps=(
            f"Read reasons and power under load: {_CLOCK_QUERY} (HW Power Brake Slowdown).",
            "Read the server's event log: `ipmitool sel elist` (lost supply, power limiting).",
            "Read supplies and node power: `ipmitool sdr type 'Power Supply'` and `ipmitool dcmi power reading`.",
            "Tell the data-centre people host, slot and since when; ask for supplies, redundancy, PDU load and rack budget.",
            _DRAIN,
        ),
        when_normal="A brake of seconds while a supply is swapped or redundancy is tested is by design.",
        confirm="Confirmed if the brake is active with the clock at half or less and the server logs a supply or budget event; without one suspect cabling or the board.",
        source=f"{_CLASSIFIERS} (short of supply: use stays 90 %, work per second falls); {_NVML_REASONS}",
    ),
    Play(
        THROTTLED,
        "power-cap",
        steps=(
            "Compare enforced and default limit, draw and clock: `nvidia-smi -q -d POWER,PERFORMANCE,CLOCK -i {gpu}`.",
            "Compare with GPUs of the same model: `nvidia-smi --query-gpu=index,power.draw,enforced.power.limit,power.default_limit,clocks.sm --format=csv`.",
            "Ask who set the limit: boot script, fleet tool, DCGM configuration, server or rack budget.",
            "If you own this host and nobody needs the lower limit, restore the default one; else move the job.",
            "If the cap is active with the draw far below the limit, tell the data-centre people: it sits in board, supply or server.",
        ),
        when_normal="A power cap at full load is healthy: a bf16 GEMM on an H200 at 700 W holds 0.73 of the maximum clock. "
        "A chosen cap may be policy, and memory-bound work loses little by it.",
        confirm="Confirmed if the enforced limit is below the default, or the clock far below that of the same model at the same load; refuted if the GPU draws its default limit.",
        source=f"{_H200} (GEMM at its cap); public cases: limit 500 of 1400 W set by a script (facebookexperimental/triton issue 2023); {_NVML_REASONS}",
    ),
    Play(
        THROTTLED,
        "sync-boost",
        steps=(
            "Read reasons and clocks of all GPUs: `nvidia-smi -q -d PERFORMANCE,CLOCK` and look for the slowest with Sync Boost active.",
            "Find why the slowest of the group is slow (heat, power, cap): its own verdict comes first.",
            "Ask who made the boost group: a job prolog or a DCGM group configuration.",
            "If you own this host and no job needs lockstep clocks, take the GPU out of the group.",
        ),
        when_normal="A boost group holds its members at one clock by design; with all at full load and equal temperature that costs little.",
        confirm="Confirmed if one member is held by heat or power and the others follow its clock; refuted if every member reports a reason of its own.",
        source=_NVML_REASONS,
    ),
    Play(
        THROTTLED,
        "clock-locked",
        steps=(
            "Compare application, current and maximum clocks: `nvidia-smi -q -d CLOCK -i {gpu}`.",
            "Ask who set them and why: a benchmark, an energy policy, a job prolog, a profiler that is still running.",
            "Estimate the cost before acting: compute-bound work loses the clock's share, memory-bound work next to nothing.",
            "If you own this host and the owner agrees, return the application clocks to their default.",
        ),
        when_normal="Locked clocks are chosen for repeatable measurements or for energy; Nsight Compute locks them while it runs.",
        confirm="Confirmed if the current SM clock sits on the application clock under load and that is below the maximum; refuted if it moves with load.",
        source=f"{_NVML_REASONS}; {_NCU}",
    ),
    Play(
        THROTTLED,
        "hw-slowdown",
        steps=(
            f"Read reasons, temperature and power several times under load: {_CLOCK_QUERY}.",
            "Look for driver faults at the same time: `dmesg -T | grep -iE 'xid|nvrm'`.",
            "Read the server's event log: `ipmitool sel elist`.",
            "Tell the data-centre people host, slot, UUID and since when; ask for power cables, supplies, seating and cooling.",
            _DRAIN,
        ),
        when_normal="The bit may flash when the GPU changes its performance state; only a share of the interval counts.",
        confirm="Confirmed if HW Slowdown stays active under load with the clock at half or less; older cards do not say whether heat or power did it.",
        source=f"{_NVML_REASONS}; advice in public threads: hardware slowdown means hardware trouble (mlfoundations/open_clip issue 703)",
    ),
    Play(
        THROTTLED,
        "unreported",
        steps=(
            f"Read reasons, power and clocks under load: {_CLOCK_QUERY}; note a draw that stops at a round value.",
            "Run the same load on another GPU of the same model and compare clock, draw and work per second.",
            "Look for driver faults: `dmesg -T | grep -iE 'xid|nvrm'`.",
            "If you own this host, drain it, power-cycle it and repeat the comparison.",
            "Tell the data-centre people or the vendor with the report of `nvidia-bug-report.sh`; ask for cables, board and server power limits.",
        ),
        when_normal="On a card that is new to the agent the expected clock may be wrong; a virtual GPU hides its reasons.",
        confirm="Confirmed if a sister card does more work per second on the same load at a higher clock; refuted if both run alike.",
        source=f"{_CLASSIFIERS} (work per second against a baseline); public cases: limits without a reason bit on small systems and laptops",
    ),
    Play(
        PSEUDO_PEAK,
        "few-sms",
        steps=(
            "Double the batch and time a step: if it takes the same time, most SMs are empty.",
            "Read grid sizes in an nsys recording: `nsys stats --report cuda_gpu_trace gpuwhy.nsys-rep` (fewer blocks than the card has SMs).",
            "Give each kernel more blocks: larger batch, several streams, split-K or split attention kernels.",
            "Serve more from one GPU: dynamic batching with a window of half the P99 goal, or several models on it.",
            "If it must stay small, use a MIG slice or share by MPS, as your scheduler offers them.",
        ),
        when_normal="Low-latency serving of a small model looks like this and is fine when its goals hold. GPU-Util counts one busy SM as 100 %.",
        confirm="Confirmed if twice the batch takes nearly the same time; refuted if the time doubles.",
        source=f"{_CLASSIFIERS} (dynamic batching about doubles throughput); {_H200} (one SM reads 100 %); {_DCGM_PROFILING}",
    ),
    Play(
        PSEUDO_PEAK,
        "spin-wait",
        steps=(
            "Look at all ranks: `py-spy dump -p {pid}` on each; the rank that is not in the collective is the late one.",
            "Read the verdict of the late peer: it starves, is throttled, or has more work than the others.",
            "Record collectives in the next run: `TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1` (older PyTorch: TORCH_NCCL_TRACE_BUFFER_SIZE).",
            "Log what NCCL does in the next run: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,NET`.",
            "Even out the work of the ranks (batch lengths, experts, evaluation on rank 0), or overlap the collective with compute.",
        ),
        when_normal="Barriers at checkpoints and kernels that poll by design wait like this for a while. Low power alone proves nothing: decode draws little too.",
        confirm="Confirmed if the other ranks stand in the same collective and one does not; if all stand in it without progress, suspect a hang or mismatched calls.",
        source=f"public cases: collectives that spin at idle power (Theano/libgpuarray issue 387, QwenLM/Qwen issue 970); {_H200}; {_NCCL}; {_TORCH_NCCL}",
    ),
    Play(
        PSEUDO_PEAK,
        "communication",
        steps=(
            "Check how the GPUs are joined: `nvidia-smi topo -m` (NV# is NVLink; PHB, NODE and SYS go through the host).",
            "Check that every link is up: `nvidia-smi nvlink --status -i {gpu}`.",
            "See which transports NCCL chose: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH` in the next run.",
            "Measure the link alone with nccl-tests, e.g. `all_reduce_perf -b 8M -e 1G -f 2 -g 8`, and compare bus bandwidth.",
            "Send less and overlap it: larger buckets, gradient accumulation, bf16 gradients, tensor parallelism inside NVLink only.",
        ),
        when_normal="Collectives read 100 % on a few SMs by design; brief all-reduces of a large model are the price of the split.",
        confirm="Confirmed if link traffic is near what nccl-tests reaches; refuted if the link is nearly silent, then a late rank is waited for.",
        source=f"{_H200} (all-reduce: SM 0.17, tensor 0); {_NCCL}",
    ),
    Play(
        PSEUDO_PEAK,
        "latency-bound",
        steps=(
            _KERNEL_TABLE,
            f"See the limit of the top kernels: {_SPEED_OF_LIGHT}; compute and memory both under 60 % means latency.",
            "Fuse elementwise, norm and concat operators (torch.compile, TensorRT); accept at 99.5 % agreement on real samples.",
            "Use the tensor cores: autocast to bf16, channels_last for convolutions, dimensions in multiples of 8.",
            "If shapes vary, turn `torch.backends.cudnn.benchmark` off or pad to buckets: it tunes anew at each shape.",
        ),
        when_normal="Sorting, hashing, graphs, sparse and small problems inside the L2 cache are like this. Occupancy of 0.25 is common and no fault.",
        confirm="Confirmed if many small elementwise kernels lead the table, or the top kernels reach under 60 % of both peaks; refuted if one is near a peak.",
        source=f"{_CLASSIFIERS} (99 % use with tensor below 20 %); {_IMAGE_SERVICE} (re-tuning at each shape); {_NCU}",
    ),
    Play(
        PSEUDO_PEAK,
        "undetermined",
        steps=(
            "Watch power beside use: `nvidia-smi dmon -s pu -i {gpu} -c 30`; power near idle means waiting, not work.",
            "Ask `gpuwhy doctor` which counters are missing (SM, tensor, DRAM, links) and how to get them.",
            _KERNEL_TABLE,
            f"See the limit of the top kernels: {_SPEED_OF_LIGHT}.",
        ),
        when_normal="Without SM, tensor and DRAM counters GPU-Util says only that something is resident; LLM decode is busy at low power and fine.",
        confirm="Confirmed if work per second stays far below what the same job reaches elsewhere; refuted if it matches.",
        source=f"{_CLASSIFIERS} (never show use without SM, tensor and bandwidth); {_DCGM_PROFILING}",
    ),
    Play(
        HEALTHY,
        "compute",
        steps=(
            "Nothing to fix; compare work per second and P99 with the goal, and keep them for the next model version.",
            "If P99 misses its goal, shorten the batching window to half the goal or add GPUs: a full GPU is not success.",
            "For more speed use a lower precision where accuracy allows (TF32, bf16, FP8).",
            "For more speed try a larger batch, fused attention and `torch.compile(model)`.",
        ),
        when_normal="A power cap at full load and 0.73 of the maximum clock are healthy here. Useful FLOPs of 38-48 % of the peak are usual for large models.",
        confirm="Confirmed if work per second matches the baseline; if it fell while this stays, the program does more work for each result.",
        source=f"{_CLASSIFIERS} (32 ms window fills the GPU, P99 27 to 57 ms; precision); {_H200}",
    ),
    Play(
        HEALTHY,
        "compute-off-tensor",
        steps=(
            "Ask whether this precision is needed: `print(torch.get_float32_matmul_precision())`; 'highest' keeps FP32 off the tensor cores.",
            "Try TF32 and compare results: `torch.set_float32_matmul_precision('high')`.",
            "Try `torch.autocast('cuda', dtype=torch.bfloat16)` and compare results on real samples.",
            "Check that matrix dimensions are multiples of 8, so that tensor kernels are chosen.",
        ),
        when_normal="Nothing to fix for FP64 science, integer work, rendering, or where FP32 results are required.",
        confirm="Confirmed as worth changing if the same model runs faster in TF32 or bf16 and the results agree; otherwise it is healthy as it is.",
        source=f"{_CLASSIFIERS} (FP32 6.2 ms, TF32 4.5, FP16 3.1); https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html",
    ),
    Play(
        IDLE,
        "free",
        steps=(
            f"Nothing to fix on the GPU; check that nobody holds it: {_OWNERS}.",
            "Check that the scheduler offers it: `sinfo -N -O NodeHost,StateLong,Gres,GresUsed` or `kubectl describe node NODE`.",
            "If work is queued while it is free, look for a cordoned node, a missing device plugin or requests that do not fit.",
        ),
        when_normal="Spare capacity, nights and reserved failover GPUs are free by intent; a loss only while work is queued.",
        confirm="Confirmed if the list is empty; a process in another pid namespace may not show there, but its memory does.",
        source="idle split by owner, as in public schedulers; https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    ),
    Play(
        IDLE,
        "held",
        steps=(
            f"Find who holds it: {_OWNERS}.",
            "See whose process that is and for how long: `ps -o pid,user,etime,args -p {pid}`.",
            "See whether it waits, hangs or sits at a prompt: `py-spy dump -p {pid}`.",
            "Ask the owner to end it or to release the memory; for notebooks set idle culling.",
            "Without a process it was granted to the workload above: ask its owner to give it back, by `kubectl describe pod` or `scontrol show job`.",
        ),
        when_normal="A warm standby or a model kept loaded for rare requests is held by intent. Memory held is not utilisation; an idle context alone draws 120-128 W on an H200.",
        confirm="Confirmed if the stacks stand still over minutes; refuted if work comes in bursts farther apart than the window.",
        source=f"{_IMAGE_SERVICE} (memory held says nothing of work); {_H200} (power of an idle context)",
    ),
    Play(
        IDLE,
        "no-demand",
        steps=(
            "Compare requests per second and P99 with the goal: if both hold, nothing is wrong with this GPU.",
            "See that the server waits for requests and not for a lock: `py-spy dump -p {pid}`.",
            "Load the real entry for 15 minutes with mixed sizes: if throughput stops early, the server's concurrency is the limit.",
            "If demand stays low, use fewer replicas, or share the GPU between models.",
            "If requests queue meanwhile, batch them with a window of half the P99 goal.",
        ),
        when_normal="Low traffic looks like this; some engines poll and keep one core hot with nothing to do. Low-latency serving at 20-30 % is fine when its goals hold.",
        confirm="Confirmed if load makes the GPU busy; refuted if requests wait while the GPU idles, then the host is the limit.",
        source=f"{_IMAGE_SERVICE} (ask for the goal first); {_CLASSIFIERS} (window of half the P99 goal, load test of 15 minutes)",
    ),
    Play(
        UNKNOWN,
        "telemetry-fault",
        steps=(
            "Compare use, clock and draw with the counters: `nvidia-smi dmon -s puc -i {gpu} -c 10`.",
            "Look for an Xid before it: `dmesg -T | grep -i xid`.",
            "Ask whether somebody profiles here or paused DCGM: before Hopper the counters have one owner for the whole host.",
            "If you own this host and nobody profiles, run `dcgmi profile --pause` and then `dcgmi profile --resume`; they act on all clients.",
            "If you own this host and the counters stay frozen, restart the host engine: `systemctl restart nvidia-dcgm`.",
        ),
        when_normal="While Nsight, CUPTI or another engine uses the counters they are blank or 0; that passes. The job itself is not affected.",
        confirm="Confirmed if power and clock say work while SM, tensor and DRAM stay at exactly 0; refuted if power is at its idle level as well.",
        source=f"public cases: counters at 0 after an Xid until paused or restarted (NVIDIA/DCGM issue 303, NVIDIA/gpu-monitoring-tools issue 189); {_DCGM_PAUSE}; {_XID}",
    ),
    Play(
        UNKNOWN,
        "no-data",
        steps=(
            "See whether the GPU answers: `nvidia-smi -L`.",
            "Ask `gpuwhy doctor` which sources answer.",
            "Look for an Xid or a lost device: `dmesg -T | grep -iE 'xid|fallen off the bus'`.",
            "Look at the host engine, where one is used: `systemctl status nvidia-dcgm`.",
            "If the GPU is lost, drain the host and tell the data-centre people its slot, UUID and Xid.",
        ),
        when_normal="Driver updates, restarts of the host engine and changes of MIG layout leave a short hole.",
        confirm="A fault of the GPU if nvidia-smi fails or hangs as well; of the agent's source if it answers.",
        source=_XID,
    ),
    Play(
        UNKNOWN,
        "insufficient-evidence",
        steps=(
            "Watch for longer: `gpuwhy explain --seconds 60`.",
            "Ask `gpuwhy doctor` which signals are missing and how to get them.",
            "Before Hopper the driver's NVML has no activity counters; on later cards bring the driver to 525 or newer.",
            "Give the agent the host: host pid namespace, /proc and cgroups readable.",
            "State the goal of this host, profile throughput or latency, in the configuration.",
        ),
        when_normal="With plain NVML only low use proves something; GeForce, MIG slices and virtual GPUs withhold signals for good.",
        confirm="Settled if a longer look gives one verdict with a confidence above 0.5; otherwise the missing signal is needed.",
        source=f"{_CLASSIFIERS} (watch minutes, not one shot); {_DCGM_PROFILING}",
    ),
    Play(
        UNKNOWN,
        "mixed",
        steps=(
            "Watch for longer and see whether phases alternate: `gpuwhy explain --seconds 60`.",
            _KERNEL_TABLE,
            "Mark the phases with NVTX (`torch.cuda.nvtx.range_push('phase')`) and judge each by itself.",
            _TIMELINE,
        ),
        when_normal="Prefill beside decode, training beside evaluation, or two jobs on one GPU are mixed by nature and need no cure.",
        confirm="Settled if the phases taken apart have verdicts of their own; if it stays between two, act on the one with more lost seconds.",
        source=f"{_IMAGE_SERVICE} (timeline first); {_NSYS}",
    ),
)

PLAY_BY_KEY: dict[CauseKey, Play] = {play.key: play for play in PLAYBOOK}


def next_steps(verdict: str, cause: str, *, gpu_index: int, pid: int | None) -> tuple[str, ...]:
    """What to do next, one to five steps, the quickest test of the verdict first.

    ``gpu_index`` is the NVML index; ``pid`` a process that owns the GPU, None = not known, which
    leaves the word PID to be replaced by the reader. Raises KeyError outside the vocabulary.
    """
    who = "PID" if pid is None else str(pid)
    # Not str.format: commands may hold braces of their own.
    return tuple(
        step.replace("{gpu}", str(gpu_index)).replace("{pid}", who)
        for step in PLAY_BY_KEY[verdict, cause].steps
    )
