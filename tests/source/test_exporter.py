"""The exporter source against texts of many versions, a clock that only the test moves, and bad servers."""

from __future__ import annotations

import csv
import string
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwhy.sample import Normaliser
from gpuwhy.source import NoGpuError, SourceError
from gpuwhy.source.dcgm_fields import FIELDS
from gpuwhy.source.exporter import (
    COUNTERS_FILE,
    DEFAULT_PERIOD_S,
    MOST_BYTES,
    NAME,
    STILL_S,
    ExporterSource,
    Parser,
    fetch,
)

from .exporter_texts import JOBS, SHARED_NEW, SHARED_OLD, VALUES, VERSIONS, A, B, mig
from .fake_exporter import FULL, STOCK, FakeExporter, response, served
from .fake_nvml import FakeGpu

ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
VERSION = VERSIONS["3.5, PCI addresses"]


class Clock:
    """Time that only the test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Host:
    """One exporter whose text the test sets, and a source that is read once a second."""

    def __init__(self, text="", *, fake=None, start=True, **options):
        self.clock = Clock()
        self.body = text
        self.energy = 1_000_000_000
        self.error = None
        self.scraped = []
        self.source = ExporterSource(
            clock=self.clock, wall=lambda: self.clock.now + 1e9, fetch=self.fetch, **options
        )
        if start:
            self.facts = self.source.start()

    def fetch(self, url, timeout_s):
        self.scraped.append(self.clock.now)
        if self.error is not None:
            raise self.error
        return self.body.replace("@ENERGY@", str(self.energy))

    def tick(self, ticks=1, *, new=False):
        for _ in range(ticks):
            self.clock.now += 1
            self.energy += 7 * new
            reading = self.source.read()
        return reading

    def values(self, text=None, *, ticks=1):
        """By GPU and instance: what is handed on when the energy has changed."""
        self.body = self.body if text is None else text
        return {
            gpu.facts.key: dict(part.values) for gpu in self.tick(ticks, new=True).gpus for part in gpu.parts
        }


def line(name, value, uuid=A, gpu=0, **labels):
    shown = ",".join(f'{key}="{text}"' for key, text in {"gpu": gpu, "UUID": uuid, **labels}.items())
    return f"{name}{{{shown}}} {value}\n"


def series(text):
    return {
        key: {name: value for name, (_, value) in of_gpu.values.items()}
        for key, of_gpu in Parser().series(text).items()
    }


# --- the texts of the versions


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_says_the_same(version):
    """Names, labels and types changed with the versions; what is read of them does not."""
    host = Host(VERSIONS[version])
    assert [(facts.index, facts.uuid, facts.mig, facts.model) for facts in host.facts] == [
        (0, A, "", "NVIDIA H200"),
        (1, B, "", "NVIDIA H200"),
    ]
    values = host.values(ticks=1)
    assert values == {(A, ""): VALUES[A]}  # the other one has nothing new
    assert {name: type(value) for name, value in values[A, ""].items()} == {
        name: type(value) for name, value in VALUES[A].items()
    }
    assert {
        key: VALUES[key[0]] for key in series(VERSIONS[version].replace("@ENERGY@", "1000000007"))
    } == series(VERSIONS[version].replace("@ENERGY@", "1000000007"))
    assert host.source.skipped == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pod_is_the_holder(version):
    """A GPU's pod is named whatever its labels are called; an empty label is none."""
    first, second = Host(VERSIONS[version]).tick().gpus
    assert first.holder == ("" if version.startswith("2.6") else "ml/llm-0")
    assert second.holder == ""


def test_facts():
    """PCI address and driver are facts where the text has them."""
    facts = Host(VERSIONS["4.8, driver's version, pod labels"]).facts[1]
    assert (facts.pci_bus_id, facts.driver, facts.share_ratio) == ("00000000:9D:00.0", "575.51.03", 1.0)
    assert not facts.split


def test_every_name_of_the_table_is_known():
    """Each field is found by each of its names, and comes under its first."""
    for wanted in FIELDS:
        for name in (wanted.name, *wanted.also):
            assert series(line(name, 1)) == {(A, ""): {wanted.name: 1}}, name


def test_the_normaliser_takes_it():
    """Raw names and units are those the signals expect: ratios, watts, bytes per second."""
    host = Host(VERSION)
    normaliser = Normaliser()
    normaliser.samples(host.tick(new=True))
    first, *_ = normaliser.samples(host.tick(new=True))
    assert first.values["dram_active_ratio"] == 0.412776
    assert first.values["gpu_util_ratio"] == 0.97
    assert first.values["power_watts"] == 612.437
    assert first.values["sm_clock_hertz"] == 1.98e9
    assert first.values["pcie_transmit_bytes_per_second"] == 1_310_720
    assert first.gains["energy_joules"] == pytest.approx(0.007)
    assert not normaliser.rejected


# --- lines that make no sense, values that are none


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "{}",
        '{gpu="0",UUID="GPU"}',
        '{gpu="0",UUID="GPU"} warm',
        '{gpu="0",UUID="GPU"} 4_5',
        '{gpu="0",UUID="GPU"} 45 0 0',
        '{gpu="0",UUID="GPU"} ' + "9" * 5000,
        '{gpu="0",UUID="GPU",pod="a"b"} 45',
        '{gpu="0",UUID="GPU} 45',
        '{gpu="0" UUID="GPU"} 45',
        "{gpu=0,UUID=GPU} 45",
        '{gpu="0",UUID="GPU",} 45 }',
    ],
)
def test_a_bad_line_costs_itself(bad):
    """It is left out and counted; all others are read."""
    parser = Parser()
    text = (
        line("DCGM_FI_DEV_SM_CLOCK", 1980)
        + f"DCGM_FI_DEV_GPU_TEMP{bad}\n"
        + line("DCGM_FI_DEV_MEM_CLOCK", 3201)
    )
    found = parser.series(text)
    assert {name: value for name, (_, value) in found[A, ""].values.items()} == {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_MEM_CLOCK": 3201,
    }
    assert parser.skipped == 1


@pytest.mark.parametrize("blank", ["NaN", "+Inf", "-Inf", "1e400"])
@pytest.mark.parametrize("name", ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_SM_ACTIVE"])
def test_no_value_is_absent(name, blank):
    """What stands for no value is not a value; the GPU is there all the same."""
    assert series(line(name, blank)) == {(A, ""): {}}


@pytest.mark.parametrize("step", range(4))
def test_dcgm_blanks_are_absent(step):
    """DCGM's blanks of 32 and 64 bits and of floating point, where an exporter lets them through."""
    for name, base in (
        ("DCGM_FI_DEV_GPU_TEMP", 0x7FFFFFF0),
        ("DCGM_FI_DEV_GPU_TEMP", 0x7FFFFFFFFFFFFFF0),
        ("DCGM_FI_PROF_SM_ACTIVE", 2**47),
    ):
        assert series(line(name, base + step)) == {(A, ""): {}}
    assert series(line("DCGM_FI_DEV_GPU_TEMP", "9.223372036854776e+18")) == {(A, ""): {}}


def test_counters_are_exact():
    """Nanoseconds of months are beyond what a float can count; what came as float is taken too."""
    assert series(line("DCGM_FI_DEV_POWER_VIOLATION", 2**53 + 1)) == {
        (A, ""): {"DCGM_FI_DEV_POWER_VIOLATION": 2**53 + 1}
    }
    assert series(line(ENERGY, "1.5e+09")) == {(A, ""): {ENERGY: 1_500_000_000}}


def test_windows_line_ends_and_escapes():
    """Label values may hold braces, commas and escapes; lines may end in CR LF."""
    text = line("DCGM_FI_DEV_SM_CLOCK", "345\r", modelName='a \\"b\\", {c} \\\\ d', pod="p")
    (only,) = Parser().series(text).values()
    assert only.labels.model == 'a "b", {c} \\ d'


def test_which_label_is_meant():
    """The exporter's UUID, not a pod's label of that name; the GPU's pod, not the exporter's; an empty one is none."""
    text = line("DCGM_FI_DEV_SM_CLOCK", 1, uuid="of the pod")
    text = text.replace("UUID", "uuid").replace("{", f'{{pod="exporter",exported_pod="llm-0",UUID="{A}",')
    assert [(key, each.holder) for key, each in Parser().series(text).items()] == [((A, ""), "llm-0")]
    text = line("DCGM_FI_DEV_SM_CLOCK", 1, pod="llm-0", exported_pod="", namespace="ml")
    assert [each.holder for each in Parser().series(text).values()] == ["ml/llm-0"]


label_names = st.sampled_from(
    ["gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "pod", "namespace"]
)


@given(st.dictionaries(label_names, st.text(string.ascii_letters + ' {}=,:"\\\n', max_size=9)), st.randoms())
def test_label_order_and_case_do_not_matter(labels, randomness):
    """The same labels mean the same in any order and case."""
    labels["UUID"] = A
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, text in labels.items()
    }
    pairs = list(escaped.items())
    block = ",".join(f'{name}="{text}"' for name, text in pairs)
    expected = Parser().series(f"DCGM_FI_DEV_SM_CLOCK{{{block}}} 1\n")
    (only,) = expected.values()
    plain = {name: text.replace("\n", "\ufffd") for name, text in labels.items()}
    assert (only.labels.model, only.labels.mig) == (plain.get("modelName", ""), plain.get("GPU_I_ID", ""))
    randomness.shuffle(pairs)
    block = " , ".join(
        f'{randomness.choice([name, name.lower(), name.upper()])}="{text}"' for name, text in pairs
    )
    assert Parser().series(f"DCGM_FI_DEV_SM_CLOCK {{ {block} }} 1\n") == expected


fragments = st.sampled_from(
    ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_SM_ACTIVE", "{", "}", '"', "\\", ",", "=", "\n", " ", "#", "gpu", "UUID", "GPU_I_ID",
     "GPU_I_PROFILE", f'UUID="{A}"', f'{{UUID="{A}",GPU_I_ID="1"}} 1\n', "3g.20gb", "45", "NaN", "1e999", "-", "9" * 30, "\x00", "\u2028"]
)  # fmt: skip
texts = st.one_of(st.text(max_size=300), st.lists(fragments, max_size=40).map("".join))


@settings(max_examples=200)
@given(st.lists(texts, min_size=1, max_size=4))
def test_whatever_comes_only_source_errors_leave(bodies):
    """Any text at all: readings or SourceError."""
    host = Host(VERSION, start=False)
    for body in bodies:
        host.body = body
        try:
            host.source.start()
            host.tick(3)
            host.source.capabilities()
            host.source.advice()
        except SourceError:
            pass
        host.source.close()


@settings(max_examples=200)
@given(st.sampled_from(sorted(VERSIONS)), st.randoms())
def test_a_damaged_text_gives_nothing_false_of_other_lines(version, randomness):
    """Characters changed at random cost their lines; whole lines are read as before."""
    whole = VERSIONS[version].replace("@ENERGY@", "1000000007").split("\n")
    at = randomness.randrange(len(whole))
    damaged = list(whole[at])
    for _ in range(min(len(damaged), 3)):
        damaged[randomness.randrange(len(damaged))] = randomness.choice('{}",=\\ x0')
    before, after = (
        series("\n".join(whole)),
        series("\n".join([*whole[:at], "".join(damaged), *whole[at + 1 :]])),
    )
    name = whole[at].partition("{")[0]
    for key, values in before.items():
        for field, value in values.items():
            if field != name and not whole[at].startswith("#") and name in {wanted.name for wanted in FIELDS}:
                assert after[key][field] == value


# --- indices


def indices(host):
    return {gpu.facts.uuid: gpu.facts.index for gpu in host.tick().gpus}


def test_pci_order_is_the_index():
    """NVML counts by PCI address, DCGM need not."""
    text = line("DCGM_FI_DEV_SM_CLOCK", 1, A, 0, pci_bus_id="00000000:1D:00.0", device="nvidia0")
    text += line("DCGM_FI_DEV_SM_CLOCK", 1, B, 1, pci_bus_id="00000000:1b:00.0", device="nvidia1")
    assert indices(Host(text)) == {A: 1, B: 0}


def test_gpu_label_where_an_address_is_missing():
    """Numbers are compared as numbers."""
    text = line("DCGM_FI_DEV_SM_CLOCK", 1, B, 10)
    text += line("DCGM_FI_DEV_SM_CLOCK", 1, A, 9, pci_bus_id="00000000:1B:00.0")
    assert indices(Host(text)) == {A: 0, B: 1}


def test_indices_stay():
    """A GPU that comes later takes the next index; one that comes back has its own again."""
    host = Host(line("DCGM_FI_DEV_SM_CLOCK", 1, B, 1))
    host.body = line("DCGM_FI_DEV_SM_CLOCK", 1, A, 0) + line("DCGM_FI_DEV_SM_CLOCK", 1, B, 1)
    assert indices(host) == {B: 0, A: 1}
    host.body = line("DCGM_FI_DEV_SM_CLOCK", 1, A, 0)
    host.source.start()
    assert indices(host) == {A: 1}


# --- MIG


def test_mig_instances_have_rows_of_their_own():
    """Activity and memory are the instances', all else is the board's, once."""
    host = Host(mig("3g.40gb", "2g.20gb"))
    assert [(facts.key, facts.profile, facts.split) for facts in host.facts] == [
        ((A, ""), "", True),
        ((A, "2"), "3g.40gb", False),
        ((A, "3"), "2g.20gb", False),
    ]
    assert [facts.share_ratio for facts in host.facts] == [2 / 7, 3 / 7, 2 / 7]
    assert {facts.index for facts in host.facts} == {0}
    assert host.values() == {
        (A, ""): {"DCGM_FI_DEV_POWER_USAGE": 250.5, ENERGY: 1_000_000_007},
        (A, "2"): {"DCGM_FI_DEV_FB_USED": 1000, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.1},
        (A, "3"): {"DCGM_FI_DEV_FB_USED": 2000, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.2},
    }


def test_mig_board_given_besides():
    """Where the exporter gives the board too, its own values go before the repeated ones; its activity is nobody's."""
    assert Host(mig("3g.40gb", board=True)).values()[A, ""] == {
        "DCGM_FI_DEV_POWER_USAGE": 251.0,
        ENERGY: 1_000_000_007,
    }


@pytest.mark.parametrize(
    ("model", "profile", "share"),
    [
        ("NVIDIA H100 80GB HBM3", "7g.80gb", 1.0),
        ("NVIDIA H100 80GB HBM3", "1g.10gb+me", 1 / 7),
        ("NVIDIA H100 80GB HBM3", "1c.3g.40gb", 3 / 7),
        ("NVIDIA H100 80GB HBM3", "MIG 2g.20gb", 2 / 7),
        ("NVIDIA H100 80GB HBM3", "what is this", 1 / 7),
        ("NVIDIA H100 80GB HBM3", "99g.1gb", 1.0),
        ("NVIDIA A30", "2g.12gb", 0.5),
        ("NVIDIA-A30", "4g.24gb", 1.0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "1g.24gb", 0.25),
        ("NVIDIA A300", "1g.1gb", 1 / 7),
    ],
)
def test_shares(model, profile, share):
    """An instance's part of the card is by compute slices; the board has what is left."""
    board, instance = Host(mig(profile, model=model)).facts
    assert profile.endswith(instance.profile)
    assert "MIG" not in instance.profile
    assert (instance.share_ratio, board.share_ratio) == (share, pytest.approx(1 - share))


def test_full_board_has_no_share():
    """Seven times a seventh is the whole."""
    assert Host(mig(*["1g.10gb"] * 7)).facts[0].share_ratio == 0


def test_mig_reconfigured():
    """Instances that are gone are in no reading, new ones are; back to a whole GPU likewise."""
    host = Host(mig("3g.40gb", "3g.40gb"))
    host.body = mig("7g.80gb")
    assert [gpu.facts.key for gpu in host.tick(2).gpus] == [(A, ""), (A, "2")]
    host.body = line(ENERGY, "@ENERGY@")
    (whole,) = host.tick(5, new=True).gpus
    assert (whole.facts.key, whole.facts.split, whole.facts.share_ratio) == ((A, ""), False, 1.0)


def test_an_idle_instance_is_as_new_as_its_board():
    """One engine fills both: what changed anywhere on the board makes all of it new."""
    assert set(Host(mig("1g.10gb", "1g.10gb")).values()) == {(A, ""), (A, "2"), (A, "3")}


# --- who shares, who holds


@pytest.mark.parametrize("text", [SHARED_OLD, SHARED_NEW])
def test_a_shared_gpu_is_one_row(text):
    """The values are the whole GPU's, never a pod's part, and both pods hold it."""
    host = Host(text)
    assert host.values() == {
        (A, ""): {"DCGM_FI_DEV_GPU_UTIL": 80, ENERGY: 1_000_000_007, "DCGM_FI_DEV_FB_USED": 5000}
    }
    assert host.tick().gpus[0].holder == "ml/llm-0,ml/llm-1"


def test_pods_share_of_utilisation_is_no_news():
    """It is asked of the driver at each scrape, when nothing else is new."""
    host = Host(SHARED_NEW)
    host.body = SHARED_NEW.replace(" 95\n", " 96\n").replace(" 1500\n", " 1700\n")
    assert host.tick().gpus[0].parts == ()


def test_jobs_hold_where_no_pod_does():
    """Several jobs of one GPU are one row too."""
    host = Host(JOBS)
    assert host.values() == {(A, ""): {ENERGY: 1_000_000_007}}
    assert host.tick().gpus[0].holder == "job:4711,job:4712"
    assert Host(JOBS.replace("hpc_job", 'pod="p",hpc_job')).tick().gpus[0].holder == "p"


# --- what is new


def test_first_scrape_is_a_baseline_and_repeats_are_not_new():
    """Nobody knows how old the first values are; equal ones are the same ones."""
    host = Host(VERSION)
    for _ in range(2):
        reading = host.tick()
        assert [(gpu.facts.uuid, gpu.parts, gpu.up) for gpu in reading.gpus] == [(A, (), True), (B, (), True)]
    (first, second) = host.tick(new=True).gpus
    (part,) = first.parts
    assert (part.source, part.span_s, part.period_s) == (NAME, 3.0, DEFAULT_PERIOD_S)
    assert second.parts == ()
    assert host.tick().gpus[0].parts == ()


def test_read_without_start():
    """start() comes first, also after close()."""
    host = Host(VERSION)
    host.source.close()
    host.source.close()
    with pytest.raises(SourceError, match="start"):
        host.source.read()


def test_readings_are_whole():
    """Each reading carries its end, the wall clock and the time since the one before."""
    host = Host(VERSION)
    reading = host.tick()
    assert (reading.end_s, reading.unix_s, reading.span_s, reading.period_s) == (
        1001.0,
        1e9 + 1001,
        1.0,
        30.0,
    )


def test_a_value_that_goes_is_no_news():
    """A pause takes values away; that says nothing of the age of the others."""
    host = Host(VERSION)
    host.body = "".join(each + "\n" for each in VERSION.split("\n") if "DRAM" not in each)
    assert host.tick().gpus[0].parts == ()


def test_a_gpu_that_comes_back_begins_anew():
    """While a GPU was not in the text, nobody knows when its values were made."""
    host = Host(VERSION)
    host.tick(new=True)
    host.body = "".join(each for each in VERSION.splitlines(keepends=True) if A not in each)
    assert [gpu.facts.uuid for gpu in host.tick().gpus] == [B]
    host.body = VERSION
    assert [gpu.parts for gpu in host.tick(new=True).gpus] == [(), ()]
    assert host.tick(new=True).gpus[0].parts[0].span_s == 1.0


@pytest.mark.parametrize(
    ("interval_s", "delay_s"), [(1, 1), (2, 1), (5, 2), (10, 5), (15, 5), (30, 5), (60, 5)]
)
def test_scrapes_as_often_as_news_come(interval_s, delay_s):
    """The period is learnt from the changes, the scrapes follow it, and every second is spoken for once."""
    clock = Clock()
    fake = FakeExporter([FakeGpu("gemm")], clock, interval_s=interval_s)
    source = ExporterSource(clock=clock, fetch=fake.fetch)
    clock.now += 0.4
    source.start()
    parts, scraped = [], []
    for _ in range(12 * max(interval_s, 5)):
        clock.now += 1
        before = fake.scrapes
        (gpu,) = source.read().gpus
        scraped += [clock.now] * (fake.scrapes - before)
        parts += [(clock.now, part) for part in gpu.parts]
    assert source.period_s == pytest.approx(interval_s, abs=delay_s)
    late = scraped[len(scraped) // 2 :]
    assert {after - before for before, after in pairwise(late)} <= {delay_s, 2 * delay_s, 1.0}
    assert (late[-1] - late[0]) / (len(late) - 1) == pytest.approx(delay_s, rel=0.35)
    assert sum(part.span_s for _, part in parts) == pytest.approx(parts[-1][0] - 1000.4, abs=delay_s)
    last = parts[-1][1]
    assert last.period_s == source.period_s
    assert last.span_s <= 2 * source.period_s


def test_ticks_need_not_be_exact():
    """A tick that comes a little early scrapes all the same."""
    host = Host(VERSION)
    for step in (1.02, 0.97, 1.01, 0.99):
        host.clock.now += step - 1
        host.tick(new=True)
    assert len(host.scraped) == 5


def test_a_long_silence_is_not_spoken_for():
    """A part covers two periods at most, however long ago the last change was."""
    host = Host(VERSION)
    host.tick(10, new=True)
    assert host.source.period_s == 1.0
    host.tick(60)
    host.energy += 7
    (part,) = (part for _ in range(5) for part in host.tick().gpus[0].parts)
    assert part.span_s == 2 * host.source.period_s


def test_a_pause_of_the_reader():
    """Who was not asked for minutes begins anew, and takes nothing for dead because one scrape fails then."""
    host = Host(VERSION)
    host.tick(new=True)
    host.clock.now += 300
    host.error = SourceError("no answer")
    assert [gpu.parts for gpu in host.tick().gpus] == [(), ()]
    host.error = None
    assert [gpu.parts for gpu in host.tick(new=True).gpus] == [(), ()]
    assert host.tick(new=True).gpus[0].parts[0].span_s == 1.0


def test_a_lost_scrape_is_no_pause():
    """An exporter at a second that misses one answer has news at the next."""
    host = Host(VERSION)
    host.tick(8, new=True)
    host.error = SourceError("no answer")
    host.tick(new=True)
    host.error = None
    host.clock.now += 0.01
    assert host.tick(new=True).gpus[0].parts[0].span_s == pytest.approx(2.0)


def test_the_period_is_learnt_from_changes_alone():
    """Not from the time to the first one, which began nowhere; one odd spacing does not bend it."""
    host = Host(VERSION)
    learnt = []
    for quiet in (1, 14, 14, 4, 14):
        host.tick(quiet)
        host.energy += 7
        while not host.tick().gpus[0].parts:
            pass
        learnt.append(host.source.period_s)
    assert learnt[:3] == [DEFAULT_PERIOD_S] * 3
    assert learnt[3:] == [pytest.approx(15, abs=5)] * 2


def test_restart_is_a_baseline_too():
    """After close() and start() the first values are of unknown age again, and what passed in between is nobody's."""
    host = Host(VERSION)
    host.tick(new=True)
    host.source.close()
    host.clock.now += 20
    host.source.start()
    assert host.tick(new=True).gpus[0].parts[0].span_s == 1.0
    host.tick(5, new=True)
    host.source.close()
    host.clock.now += 20
    host.energy += 7
    host.source.start()
    assert host.tick().gpus[0].parts == ()
    assert host.tick(new=True).gpus[0].parts[0].span_s == 2.0


# --- failures


def test_one_failure_is_passed_over_the_second_is_not():
    """One lost scrape is a second without news; two are a lost source, until it is started again."""
    host = Host(VERSION)
    host.tick(new=True)
    host.error = SourceError("http://x did not answer within 2 s")
    reading = host.tick()
    assert [(gpu.up, gpu.parts, gpu.holder) for gpu in reading.gpus] == [
        (True, (), "ml/llm-0"),
        (True, (), ""),
    ]
    host.error = None
    assert host.tick(new=True).gpus[0].parts[0].span_s == 2.0
    host.error = NoGpuError("nothing listens")
    host.tick()
    with pytest.raises(SourceError, match="nothing listens") as raised:
        host.tick()
    assert not isinstance(raised.value, NoGpuError)  # it was there
    host.source.close()
    with pytest.raises(NoGpuError):
        host.source.start()
    host.error = None
    assert len(host.source.start()) == 2


@pytest.mark.parametrize(
    "text", ["", "# nothing here\n", "process_cpu_seconds_total 3\n", 'dcgm_sm_clock{gpu="0",uuid="x"} 1\n']
)
def test_no_gpu_in_the_text(text):
    """A server that serves no GPU is no source; one that served some is lost at the second look."""
    with pytest.raises(NoGpuError, match=r"serves no GPU.*counters file"):
        Host(text)
    host = Host(VERSION)
    host.body = text
    host.tick()
    with pytest.raises(SourceError, match="serves no GPU"):
        host.tick()


def test_values_that_stand_still_are_a_dead_engine():
    """It says since when; starting again does not help until they move."""
    host = Host(VERSION)
    host.tick(5, new=True)
    host.tick(int(STILL_S))
    with pytest.raises(SourceError, match=r"stand still since 2001-09-09 02:03:25 UTC; restart"):
        host.tick(5)
    host.source.close()
    for _ in range(2):
        host.clock.now += 60
        with pytest.raises(SourceError, match="02:03:25 UTC"):
            host.source.start()
    host.energy += 1
    assert len(host.source.start()) == 2
    assert host.tick(new=True).gpus[0].parts


def test_one_gpu_that_stands_still_is_left_alone():
    """It is up and has nothing new; the other goes on."""
    host = Host(VERSION)
    reading = host.tick(200, new=True)
    assert [(gpu.up, len(gpu.parts)) for gpu in reading.gpus] == [(True, 1), (True, 0)]


def test_a_seldom_exporter_has_three_periods():
    """With a learnt period of a minute, ninety seconds are no silence."""
    host = Host(VERSION)
    for _ in range(5):
        host.tick(59)
        host.tick(new=True)
    host.tick(170)
    with pytest.raises(SourceError, match="stand still"):
        host.tick(30)


def test_profiling_that_is_gone_is_told():
    """Paused or taken, while the rest goes on; told until it is back, and never where there was none."""
    clock = Clock()
    fake = FakeExporter([FakeGpu("gemm"), FakeGpu("idle", uuid=B)], clock)
    source = ExporterSource(clock=clock, fetch=fake.fetch)

    def tick(ticks=3):
        for _ in range(ticks):
            clock.now += 1
            reading = source.read()
        return reading

    source.start()
    assert source.yielding == ""
    tick()
    assert source.yielding == ""
    fake.paused = True
    reading = tick()
    assert source.yielding.startswith("the exporter's profiling values are gone")
    assert "DCGM_FI_PROF_SM_ACTIVE" not in reading.gpus[0].parts[0].values
    capability = source.capabilities()[B, ""]["DCGM_FI_PROF_SM_ACTIVE"]
    assert (capability.source, capability.reason) == (None, source.yielding)
    fake.paused = False
    tick()
    assert source.yielding == ""


def test_a_gpu_without_any_value_is_not_yielding():
    """Nothing of it goes on: that is no pause."""
    host = Host(VERSION)
    host.body = line(ENERGY, "NaN")
    assert [gpu.parts for gpu in host.tick(2).gpus] == [()]
    assert host.source.yielding == ""


# --- what doctor asks


def test_capabilities():
    """Each field of each row is served, or has its reason."""
    both = Host(VERSION).source.capabilities()
    assert set(both) == {(A, ""), (B, "")}
    assert both[A, ""][ENERGY].source == NAME
    assert set(both[A, ""]) == {wanted.name for wanted in FIELDS}
    assert "counters file" in both[A, ""]["DCGM_FI_PROF_SM_ACTIVE"].reason
    text = line("DCGM_FI_DEV_SM_CLOCK", 1) + line("DCGM_FI_DEV_MEM_CLOCK", 1, B, 1)
    assert "other GPUs" in Host(text).source.capabilities()[A, ""]["DCGM_FI_DEV_MEM_CLOCK"].reason
    split = Host(mig("3g.40gb")).source.capabilities()
    assert "each instance" in split[A, ""]["DCGM_FI_PROF_SM_ACTIVE"].reason
    assert "the board" in split[A, "2"][ENERGY].reason
    assert split[A, "2"]["DCGM_FI_DEV_FB_USED"].source == split[A, ""][ENERGY].source == NAME


def test_counters_file_has_every_field():
    """Each field has one line, of a type and a help that the exporter's CSV reader takes."""
    names = {name: wanted for wanted in FIELDS for name in (wanted.name, *wanted.also)}
    assert sorted(names[name].name for name, *_ in COUNTERS_FILE) == sorted(wanted.name for wanted in FIELDS)
    for name, kind, about, _ in COUNTERS_FILE:
        (row,) = csv.reader([f"{name}, {kind}, {about}."])
        assert len(row) == 3
        cumulative = name == ENERGY or name.endswith(("_VIOLATION", "_NS"))
        assert kind == ("counter" if cumulative else "gauge")


def test_advice_names_the_lines():
    """What is missing, in lines to paste; those that an older exporter does not know stand apart."""
    clock = Clock()
    fake = FakeExporter([FakeGpu("gemm")], clock, counters=STOCK)
    source = ExporterSource(clock=clock, fetch=fake.fetch)
    source.start()
    clock.now += 1
    source.read()
    first, *lines = source.advice()
    assert first.startswith("lines for its counters file (option -f)")
    assert (
        lines[0] == "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Reasons that hold clocks down as a bit mask."
    )
    assert "DCGM_FI_PROF_SM_ACTIVE, gauge, Ratio of time with a warp on an SM." in lines
    assert not any(each.startswith(tuple(f"{name}," for name in STOCK)) for each in lines)
    apart = lines.index("# dcgm-exporter 4.4.0 or later; an older one does not start with these:")
    assert [each.partition(",")[0][-3:] for each in lines[apart + 1 :]] == ["_NS"] * 3
    assert len([each for each in lines if each[0] != "#"]) == len(FIELDS) - len({*STOCK} & {*FULL})
    fake.counters = FULL
    clock.now += 1
    source.read()
    assert source.advice() == ()


def seldom(source):
    """What is advised on the interval."""
    return "".join(each for each in source.advice() if "values are new" in each)


def test_advice_on_the_interval():
    """A slow exporter is told, once it is known to be slow."""
    clock = Clock()
    fake = FakeExporter([FakeGpu("gemm")], clock, interval_s=30)
    source = ExporterSource(clock=clock, fetch=fake.fetch)
    source.start()
    assert not seldom(source)
    for _ in range(10):
        clock.now += 1
        source.read()
    assert seldom(source).startswith("its values are new not within 9 s of looking")
    assert "`-c 1000`" in seldom(source)
    for _ in range(170):
        clock.now += 1
        source.read()
    assert "new each 30 s" in seldom(source)
    fake.interval_s = 1
    for _ in range(40):
        clock.now += 1
        source.read()
    assert not seldom(source)


def test_no_advice_for_what_mig_has_not():
    """GPU-Util is no field that a split card could serve."""
    lines = Host(mig("3g.40gb")).source.advice()
    assert not [each for each in lines if "GPU_UTIL" in each or "COPY_UTIL" in each]
    assert [each for each in lines if "SM_ACTIVE" in each]


# --- HTTP, over loopback


def answered(body, timeout_s=5.0):
    """What ``fetch`` makes of a server that sends ``body``."""
    with served(lambda connection: connection.sendall(body)) as url:
        return fetch(url, timeout_s)


def test_an_answer():
    """Whole, cut at its last whole line, and the connection is closed."""
    closed = []

    def answer(connection):
        connection.sendall(response("a 1\nb 2\nDCGM_FI_DEV_SM_CLOCK 19"))
        closed.append(connection.recv(1))

    with served(answer) as url:
        assert fetch(url, 5.0) == "a 1\nb 2\n"
    assert closed == [b""]


def test_request(monkeypatch):
    """One plain GET of the path that the url names, through no proxy."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    requests = []
    with served(lambda connection: connection.sendall(response("a 1\n")), requests) as url:
        there = url.replace("127.0.0.1", "localhost").replace("/metrics", "/x/metrics?a=b")
        assert fetch(there, 5.0) == "a 1\n"
    head, *fields = requests[0].decode().split("\r\n")
    assert head == "GET /x/metrics?a=b HTTP/1.1"
    assert "Host: " + there.split("/")[2] in fields
    assert "Connection: close" in fields


@pytest.mark.parametrize(
    "body",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\na 1\nb 2\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\na 1\nb 2\n",
    ],
)
def test_ways_to_end_an_answer(body):
    """In chunks, as Go does, or by closing."""
    assert answered(body) == "a 1\nb 2\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (response("internal server error", status="500 Internal Server Error"), "answers 500 Internal.*log"),
        (response("", status="404 Not Found"), "404.*check the url"),
        (response("", "Location: https://x/metrics", status="301 Moved"), "redirects to https://x/metrics; set"),
        (response("<html>hello</html>\n"), "web page.*/metrics"),
        (response("hello\n", kind="text/html"), "web page"),
        (response("a 1\n", "Content-Encoding: gzip"), "compresses"),
        (response("a 1\nb 2\n")[:-3], "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", "cannot be read"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "cannot be read"),
        (b"\x00\xff" * 40000, "cannot be read"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", "cannot be read"),
        (b"", "cannot be read"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_used(body, words):
    """Each is a SourceError of printable size that names the url and a remedy."""
    with (
        served(lambda connection: connection.sendall(body)) as url,
        pytest.raises(SourceError, match=words) as raised,
    ):
        fetch(url, 5.0)
    assert url in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


def test_an_answer_without_end():
    """More than any exporter sends is not read on."""
    sent = []

    def answer(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(8 * MOST_BYTES // 2**20):
            connection.sendall(b"a 1\n" * 2**18)
            sent.append(2**20)

    with served(answer) as url, pytest.raises(SourceError, match="more than 4 MiB"):
        fetch(url, 30.0)
    assert sum(sent) < 6 * MOST_BYTES


def hang(connection):
    connection.recv(1)  # until the other side gives up


def drip(first):
    def answer(connection):
        connection.sendall(first)
        connection.settimeout(0.02)
        for _ in range(3000):
            connection.sendall(b"x")
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                pass

    return answer


@pytest.mark.parametrize(
    "answer",
    [hang, drip(b""), drip(b"HTTP/1.1 200 OK\r\nX: "), drip(b"HTTP/1.1 200 OK\r\n\r\n")],
    ids=["hangs", "drips", "drips headers", "drips body"],
)
def test_the_deadline_is_for_all_of_it(answer):
    """A byte now and then does not buy time."""
    began = time.monotonic()
    with served(answer) as url, pytest.raises(SourceError, match=r"did not answer within 0\.2 s"):
        fetch(url, 0.2)
    assert time.monotonic() - began < 10  # the drip would last a minute


def test_nothing_listens():
    """No exporter here is no source here."""
    with served(hang) as url:
        pass
    with pytest.raises(NoGpuError, match=r"nothing listens at http://127.*start dcgm-exporter"):
        ExporterSource(url=url).start()


@pytest.mark.parametrize("url", ["", "127.0.0.1:9400", "ftp://x/metrics", "http://", "http://x:port/", "http://[x/", "http://x/a b", "http://a..b/", "http://127.0.0.1/\u00fc"])  # fmt: skip
def test_urls_that_are_none(url):
    """They are refused with a word on why."""
    with pytest.raises(SourceError, match="cannot be read"):
        fetch(url, 1.0)


def test_passwords_are_not_repeated():
    """A url with a login is refused without being shown."""
    with pytest.raises(SourceError, match="user name") as raised:
        fetch("http://me:secret@127.0.0.1:1/metrics", 1.0)
    assert "secret" not in str(raised.value)


def test_tls_to_a_plain_server():
    """What is no TLS is told as such."""
    with (
        served(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url,
        pytest.raises(SourceError, match=r"https://.*cannot be read"),
    ):
        fetch(url.replace("http", "https"), 5.0)


# --- recordings through a real server


def play(recording, counters, *, interval_s, seconds):
    clock = Clock()
    fake = FakeExporter(
        [FakeGpu(recording)], clock, interval_s=interval_s, counters=counters, holders={0: "ml/llm-0"}
    )
    parts = []
    with fake.served() as url:
        source = ExporterSource(url=url, clock=clock)
        source.start()
        for _ in range(seconds):
            clock.now += 1
            (gpu,) = source.read().gpus
            assert (gpu.up, gpu.holder) == (True, "ml/llm-0")
            parts += gpu.parts
        source.close()
    return fake, source, parts


def test_a_recording_with_all_fields():
    """Ten seconds of a GEMM come out as they were recorded."""
    fake, source, parts = play("gemm", FULL, interval_s=1.0, seconds=10)
    assert fake.scrapes == 11
    assert len(parts) == 10
    assert set(parts[-1].values) == set(FULL)
    assert {capability.source for capability in source.capabilities()[fake.gpus[0].uuid, ""].values()} == {
        NAME
    }
    mean = sum(part.values["DCGM_FI_PROF_SM_ACTIVE"] for part in parts) / len(parts)
    recorded = [row["gpm"]["sm_util"] for row in fake.gpus[0].rows]
    assert mean == pytest.approx(sum(recorded) / len(recorded) / 100, rel=0.02)


def test_a_recording_with_the_stock_fields():
    """Half a minute's means, each half minute."""
    _, source, parts = play("h2d", STOCK, interval_s=30.0, seconds=185)
    assert len(parts) == 6
    assert source.period_s == 30.0
    assert [part.span_s for part in parts[1:]] == [pytest.approx(30.0, abs=5)] * 5
    assert set(parts[-1].values) == {*STOCK} & {*FULL}


def test_advice_before_there_is_any_profiling():
    """In its first interval dcgm-exporter has no profiling: that is said before lines that may be there already."""
    clock = Clock()
    fake = FakeExporter([FakeGpu("gemm")], clock)
    fake.paused = True
    source = ExporterSource(clock=clock, fetch=fake.fetch)
    source.start()
    assert source.advice()[0].startswith("no profiling so far")
    assert (
        "less than an interval ago"
        in source.capabilities()[(fake.gpus[0].uuid, "")]["DCGM_FI_PROF_SM_ACTIVE"].reason
    )


def test_label_that_a_terminal_would_obey():
    """Escape sequences in a pod's or model's name stay text, and no name is longer than names are."""
    text = line("DCGM_FI_DEV_SM_CLOCK", 1, pod="\x1b[2Jllm", modelName="H200" + "x" * 1000)
    (series,) = Parser().series(text).values()
    assert series.holder == "\ufffd[2Jllm"
    assert len(series.labels.model) == 256


def test_exporter_of_many_hosts_is_refused():
    """A service that answers for another host each time is no exporter of this one."""
    clock = Clock()
    texts = iter(
        "".join(line("DCGM_FI_DEV_SM_CLOCK", 1, UUID=f"GPU-{scrape}-{gpu}") for gpu in range(8))
        for scrape in range(100)
    )
    source = ExporterSource(clock=clock, fetch=lambda *_: next(texts))
    source.start()

    def go_on():
        for _ in range(90):
            clock.now += 1
            source.read()

    with pytest.raises(SourceError, match="more than one host has"):
        go_on()
