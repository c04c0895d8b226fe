"""Recording rules: what Prometheus itself makes of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwhy.catalog import SERIES_BY_NAME
from gpuwhy.render import recording

NAME = re.compile(r"[a-z]+:gpuwhy_[a-z_]+:[a-z0-9]+")


def series(stem: str, per_minute: float, minutes: int = 180, **labels: str) -> dict[str, str]:
    """A counter that gains so much a minute; it is scraped once a minute."""
    own = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return {"series": f"gpuwhy_{stem}{{{own}}}", "values": f"0+{per_minute:g}x{minutes}"}


def constant(stem: str, value: float, minutes: int = 180, **labels: str) -> dict[str, str]:
    own = ",".join(f'{name}="{each}"' for name, each in labels.items())
    return {"series": f"gpuwhy_{stem}{{{own}}}", "values": f"{value:g}x{minutes}"}


def gpu(instance: str, index: str, mig: str = "") -> dict[str, str]:
    return {"instance": instance, "gpu": index, "uuid": f"GPU-{instance}-{index}", "mig": mig}


@pytest.fixture
def evaluated(promtool: str, tmp_path: Path) -> Any:
    """Has promtool evaluate the rules over these series, and compare at minute 120."""

    def run(inputs: list[dict[str, str]], **expected: dict[str, float]) -> None:
        (tmp_path / "rules.yaml").write_text(recording.rule_file())
        tests = [
            {
                "expr": expr.replace("__", ":"),
                "eval_time": "120m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for expr, samples in expected.items()
        ]
        plan = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": "5m",
            "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": tests}],
        }
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump(plan))
        done = subprocess.run(
            [promtool, "test", "rules", "tests.yaml"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_prometheus_takes_the_rules(promtool: str, root: Path) -> None:
    """The checked-in file passes promtool, duplicates and all."""
    file = root / "alerts/recording.rules.yaml"
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_levels_metrics_and_operations() -> None:
    """Every rule records under a name of its own, from counters of the catalogue or what was recorded before."""
    known: set[str] = set()
    for group in recording.groups():
        for rule in group["rules"]:
            assert NAME.fullmatch(rule["record"])
            for name in re.findall(r"\bgpuwhy_\w+(?=[\[{])", rule["expr"]):
                assert name in SERIES_BY_NAME, name
            for name in re.findall(NAME, rule["expr"]):
                assert name in known, f"{rule['record']} reads {name}, which is recorded later"
            assert rule["record"] not in known
            known.add(rule["record"])


def test_hours_add_up_from_gpu_to_fleet(evaluated: Any) -> None:
    """Seconds of an hour, of GPUs on two hosts, one of them in MIG mode: slices count as what they are."""
    a0, b0, b1 = gpu("a", "0"), gpu("b", "0", "1"), gpu("b", "0", "2")
    inputs = []
    for row, share, model in ((a0, 1.0, "H200"), (b0, 0.25, "A100"), (b1, 0.5, "A100")):
        inputs += [
            constant("gpu_share_ratio", share, **row),
            constant("gpu_info", 1, model=model, driver="1", **row),
            series("observed_seconds_total", 60, **row),
            series("measured_seconds_total", 60, **row),
            series("useful_seconds_total", 30, **row),
            series("lost_seconds_total", 12, verdict="starving", cause="copy", **row),
            series("lost_seconds_total", 0, verdict="idle", cause="held", **row),
        ]
    evaluated(
        inputs,
        **{
            "sum(gpu__gpuwhy_lost_seconds__increase1h)": {"{}": 3 * 720},
            "count(gpu__gpuwhy_lost_seconds__increase1h)": {"{}": 3},  # zero rows are left out
            "instance__gpuwhy_observed_seconds__increase1h": {
                'instance:gpuwhy_observed_seconds:increase1h{instance="a"}': 3600,
                'instance:gpuwhy_observed_seconds:increase1h{instance="b"}': 2700,
            },
            "model__gpuwhy_useful_seconds__increase1h": {
                'model:gpuwhy_useful_seconds:increase1h{model="H200"}': 1800,
                'model:gpuwhy_useful_seconds:increase1h{model="A100"}': 1350,
            },
            "fleet__gpuwhy_lost_seconds__increase1h": {
                'fleet:gpuwhy_lost_seconds:increase1h{verdict="starving", cause="copy"}': 1260,
            },
            "fleet__gpuwhy_efficiency__ratio1h": {"fleet:gpuwhy_efficiency:ratio1h": 0.5},
            "gpu__gpuwhy_efficiency__ratio1h": {
                f'gpu:gpuwhy_efficiency:ratio1h{{instance="{row["instance"]}", gpu="0", uuid="{row["uuid"]}", mig="{row["mig"]}"}}': 0.5
                for row in (a0, b0, b1)
            },
        },
    )


def test_workloads_are_summed_over_their_gpus(evaluated: Any) -> None:
    """A workload on two GPUs, and another of its owner: each has its sum, the owner both."""
    train = {"workload_kind": "slurm", "workload": "train", "workload_namespace": "", "workload_owner": "ann"}
    serve = {"workload_kind": "slurm", "workload": "serve", "workload_namespace": "", "workload_owner": "ann"}
    inputs = []
    for row, who in ((gpu("a", "0"), train), (gpu("b", "0"), train), (gpu("a", "1"), serve)):
        inputs += [
            constant("gpu_share_ratio", 1, **row),
            series("workload_verdict_seconds_total", 60, verdict="starving", **row, **who),
            series("workload_measured_seconds_total", 60, **row, **who),
            series("workload_useful_seconds_total", 15, **row, **who),
        ]
    evaluated(
        inputs,
        **{
            "workload__gpuwhy_verdict_seconds__increase1h{workload='train'}": {
                'workload:gpuwhy_verdict_seconds:increase1h{workload_kind="slurm", workload="train", workload_owner="ann", verdict="starving"}': 7200,
            },
            "owner__gpuwhy_measured_seconds__increase1h": {
                'owner:gpuwhy_measured_seconds:increase1h{workload_owner="ann"}': 10800,
            },
            "owner__gpuwhy_efficiency__ratio1h": {
                'owner:gpuwhy_efficiency:ratio1h{workload_owner="ann"}': 0.25
            },
        },
    )


def test_an_hour_without_use_is_zero_and_one_without_measure_is_nothing(evaluated: Any) -> None:
    """Efficiency is 0 where time was measured and none useful, and absent where nothing was measured."""
    a, b = gpu("a", "0"), gpu("b", "0")
    evaluated(
        [
            constant("gpu_share_ratio", 1, **a),
            series("measured_seconds_total", 60, **a),
            series("useful_seconds_total", 0, **a),
            constant("gpu_share_ratio", 1, **b),
            series("measured_seconds_total", 0, **b),
        ],
        instance__gpuwhy_efficiency__ratio1h={'instance:gpuwhy_efficiency:ratio1h{instance="a"}': 0},
    )


def test_a_host_that_was_lost_counts_what_it_had(evaluated: Any) -> None:
    """A host that went within the hour keeps its GPU's model and weight for that hour."""
    row = gpu("a", "0")
    evaluated(
        [
            constant("gpu_share_ratio", 1, 90, **row),
            constant("gpu_info", 1, 90, model="H200", driver="1", **row),
            series("observed_seconds_total", 60, 90, **row),
        ],
        **{
            # Prometheus adds half a scrape interval to where a series ends.
            "round(model__gpuwhy_observed_seconds__increase1h, 100)": {'{model="H200"}': 1800},
        },
    )
