"""Recording rules: what Prometheus itself makes of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from gpuwhy import recorded
from gpuwhy.catalog import SERIES_BY_NAME
from gpuwhy.config import RenderConfig
from gpuwhy.render import recording
from gpuwhy.render.promql import Promql, braces, by, duration, over
from gpuwhy.render.recording import Recording

OPTIONS = RenderConfig()
OWN = RenderConfig(selector='cluster="a"', host_label="node")
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
    """Has promtool evaluate the rules over these series, and compare at one time."""

    def run(
        inputs: list[dict[str, str]],
        *,
        options: RenderConfig = OPTIONS,
        only: str = "",
        interval: str = "1m",
        every: str = "5m",
        at: str = "120m",
        **expected: dict[str, float],
    ) -> None:
        groups = Recording(Promql(options)).groups()
        kept = [group for group in groups if only in group["name"]]
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": kept}))
        tests = [
            {
                "expr": expr.replace("__", ":"),
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for expr, samples in expected.items()
        ]
        plan = {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": every,
            "tests": [{"interval": interval, "input_series": inputs, "promql_expr_test": tests}],
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


@pytest.mark.parametrize("options", [OPTIONS, OWN], ids=["default", "own"])
def test_both_grammars_take_the_rules(promtool: str, tmp_path: Path, options: RenderConfig) -> None:
    """The file passes promtool 2.42, and each expression the grammar of Prometheus 3."""
    file = tmp_path / "rules.yaml"
    file.write_text(recording.rule_file(options))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for group in yaml.safe_load(file.read_text())["groups"]:
        for rule in group["rules"]:
            promql_parser.parse(rule["expr"])


def test_names_are_levels_metrics_and_operations() -> None:
    """Every rule records under a name of its own, from counters of the catalogue or what was recorded before."""
    known: set[str] = set()
    for group in Recording().groups():
        for rule in group["rules"]:
            assert NAME.fullmatch(rule["record"])
            for name in re.findall(r"\bgpuwhy_\w+(?=[\[{])", rule["expr"]):
                assert name in SERIES_BY_NAME, name
            for name in re.findall(NAME, rule["expr"]):
                assert name in known, f"{rule['record']} reads {name}, which is recorded later"
            assert rule["record"] not in known
            known.add(rule["record"])


def test_names_are_asked_for_by_level_and_stem() -> None:
    """What is recorded can be asked for, and what is not raises."""
    there = {rule["record"] for group in Recording().groups() for rule in group["rules"]}
    asked = {recording.SHARE}
    for level in recorded.LEVELS:
        for quantity in level.quantities:
            asked.add(recorded.hourly(level.name, quantity.stem))
            if quantity in level.weekly:
                asked.add(recorded.weekly(level.name, quantity.stem))
        operations = ["ratio1h", "ratio1w", "delta1w"] if level.weeks else ["ratio1h"]
        asked |= {recorded.efficiency(level.name, operation) for operation in operations}
    assert asked == there
    with pytest.raises(StopIteration):
        recorded.hourly("workload", "free")
    with pytest.raises(KeyError):
        recorded.weekly("gpu", "lost")
    with pytest.raises(KeyError):
        Promql().raw("verdict_minutes_total")


@pytest.mark.parametrize("options", [OPTIONS, OWN], ids=["default", "own"])
def test_rules_say_their_labels(options: RenderConfig) -> None:
    """The labels of a recorded series are those that its level and its quantity keep, by the user's name."""
    rules = [*Recording(Promql(options)).hours(), *Recording(Promql(options)).weeks()]
    for rule in rules:
        level = rule.record.partition(":")[0]
        assert (options.host_label in rule.labels) == (level in {"gpu", "instance"})
        assert ("instance" in rule.labels) == (
            options.host_label == "instance" and level in {"gpu", "instance"}
        )
        assert ("cause" in rule.labels) == (
            "lost" in rule.record or ("verdict" in rule.record and level not in {"workload", "owner"})
        )
        assert rule.help.startswith("of ")
        if rule.labels:
            assert not rule.expr.startswith("sum (")


def test_own_matchers_are_on_every_counter() -> None:
    """With matchers of the user's no counter is read without them, and hosts are told apart by his label."""
    for rule in Recording(Promql(OWN)).hours():
        counters = re.findall(r"\bgpuwhy_\w+(?![\w:])(?=\{)[^}]*", rule.expr)
        assert len(counters) == len(re.findall(r"(?<!:)\bgpuwhy_\w+(?!:|\w)", rule.expr))
        assert all('cluster="a"' in each for each in counters)
        assert "instance" not in rule.expr.replace("instance:gpuwhy", "")


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


def hours(name: str, *values: tuple[int, float], **labels: str) -> dict[str, str]:
    """A recorded series, a point an hour: so many hours this value."""
    own = ",".join(f'{label}="{value}"' for label, value in labels.items())
    points = " ".join(f"{value:g}x{count - 1}" if count > 1 else f"{value:g}" for count, value in values)
    return {"series": f"{name}{{{own}}}", "values": points}


def test_own_host_label_and_one_cluster_of_two(evaluated: Any) -> None:
    """Hosts by the user's label; the series of another cluster are not counted."""
    row = {"node": "a", "gpu": "0", "uuid": "GPU-a0", "mig": ""}
    inputs = []
    for cluster in ("a", "b"):
        inputs += [
            constant("gpu_share_ratio", 1, **row, cluster=cluster, instance="10.0.0.1:9837"),
            constant("gpu_info", 1, model="H200", **row, cluster=cluster, instance="10.0.0.1:9837"),
            series("observed_seconds_total", 60, **row, cluster=cluster, instance="10.0.0.1:9837"),
        ]
    evaluated(
        inputs,
        options=OWN,
        instance__gpuwhy_observed_seconds__increase1h={
            'instance:gpuwhy_observed_seconds:increase1h{node="a"}': 3600
        },
        model__gpuwhy_observed_seconds__increase1h={
            'model:gpuwhy_observed_seconds:increase1h{model="H200"}': 3600
        },
    )


def test_weeks_are_their_hours(evaluated: Any) -> None:
    """A week is the sum of its hours, each counted once; a gap is no time; efficiency is the sums' ratio."""
    name = "fleet:gpuwhy_{}_seconds:increase1h"
    evaluated(
        [
            # From hour 0 on: one week of 3600 s, of which half is useful, then one in which a quarter is.
            hours(name.format("measured"), (336, 3600)),
            hours(name.format("useful"), (169, 1800), (167, 900)),
            hours(name.format("lost"), (300, 60), (36, 30), verdict="starving", cause="copy"),
            hours("owner:gpuwhy_measured_seconds:increase1h", (336, 3600), workload_owner="ann"),
            hours("owner:gpuwhy_useful_seconds:increase1h", (169, 1800), workload_owner="ann"),
        ],
        only="weeks",
        interval="1h",
        every="721m",  # not at a full hour, at which Prometheus 2 takes one point more than 3 does
        at=f"{28 * 721}m",
        **{
            "fleet__gpuwhy_measured_seconds__sum1w": {"fleet:gpuwhy_measured_seconds:sum1w": 167 * 3600},
            "fleet__gpuwhy_lost_seconds__sum1w": {
                'fleet:gpuwhy_lost_seconds:sum1w{verdict="starving", cause="copy"}': 131 * 60 + 36 * 30,
            },
            "fleet__gpuwhy_efficiency__ratio1w": {"fleet:gpuwhy_efficiency:ratio1w": 0.25},
            "round(fleet__gpuwhy_efficiency__delta1w, 0.001)": {"{}": -0.25},
            # Nothing was useful for a week: 0, and worse by all that there was.
            "owner__gpuwhy_efficiency__ratio1w": {'owner:gpuwhy_efficiency:ratio1w{workload_owner="ann"}': 0},
            "round(owner__gpuwhy_efficiency__delta1w, 0.01)": {'{workload_owner="ann"}': -0.5},
        },
    )


def test_a_week_before_that_hardly_was_is_compared_with_nothing(evaluated: Any) -> None:
    """A day of hours is a week to compare with, and fewer are none."""
    # The week before has hours 1 to 168, of which the last belongs to the stretch that goes on.
    inputs = [
        {
            "series": f'model:gpuwhy_{stem}_seconds:increase1h{{model="{model}"}}',
            "values": f"100x{count - 1} _x{168 - count} 100x167",
        }
        for count, model in ((23, "new"), (24, "known"))
        for stem in ("measured", "useful")
    ]
    evaluated(
        inputs,
        only="weeks",
        interval="1h",
        every="721m",
        at=f"{28 * 721}m",
        model__gpuwhy_efficiency__delta1w={'model:gpuwhy_efficiency:delta1w{model="known"}': 0},
    )


def test_promql_in_pieces() -> None:
    """Matchers, groupings, windows and durations as PromQL writes them."""
    assert braces() == ""
    assert braces("", ' a="1" ', 'b!="2"') == '{a="1",b!="2"}'
    assert by(()) == ""
    assert by(("a", "b")) == " by (a, b)"
    assert over("x:y:z", "7d:1h", 'a="1"') == 'x:y:z{a="1"}[7d:1h]'
    assert [duration(seconds) for seconds in (0, 59.6, 90, 300, 5400, 7200, 86400, 1e6)] == [
        "0s",
        "1m",
        "90s",
        "5m",
        "90m",
        "2h",
        "1d",
        "1000000s",
    ]
    assert Promql(OWN).row == ("node", "gpu", "uuid", "mig")
    assert Promql(OWN).raw("gpu_up", 'mig=""', window="5m") == 'gpuwhy_gpu_up{cluster="a",mig=""}[5m]'
    assert Promql().increase("observed_seconds_total", "1h") == "increase(gpuwhy_observed_seconds_total[1h])"


def test_a_gpu_that_gets_another_name_counts_once(evaluated: Any) -> None:
    """While a driver renames the card, its hour belongs to one model, and those of others are not lost."""
    a, b = gpu("a", "0"), gpu("b", "0")
    inputs = [
        each
        for row in (a, b)
        for each in (constant("gpu_share_ratio", 1, **row), series("observed_seconds_total", 60, **row))
    ]
    inputs += [
        constant("gpu_info", 1, 100, model="A100", driver="1", **a),
        {**constant("gpu_info", 1, 180, model="NVIDIA A100", driver="2", **a), "values": "_x100 1x80"},
        constant("gpu_info", 1, model="H200", driver="1", **b),
    ]
    evaluated(
        inputs,
        **{
            "sum(model__gpuwhy_observed_seconds__increase1h)": {"{}": 7200},
            'model__gpuwhy_observed_seconds__increase1h{model="H200"}': {
                'model:gpuwhy_observed_seconds:increase1h{model="H200"}': 3600
            },
        },
    )


def test_a_gpu_that_is_split_by_mig_within_the_hour_stays_one_gpu(evaluated: Any) -> None:
    """The board's seconds weigh what its share was while they passed."""
    board, first, second = gpu("a", "0"), gpu("a", "0", "1"), gpu("a", "0", "2")
    inputs = [
        {**constant("gpu_share_ratio", 1, **board), "values": "1x89 0x90"},
        series("observed_seconds_total", 60, **board),
    ]
    for row in (first, second):
        inputs += [
            {**constant("gpu_share_ratio", 0.5, **row), "values": "_x90 0.5x90"},
            {**series("observed_seconds_total", 60, **row), "values": "_x90 0+60x90"},
        ]
    # Prometheus adds half a scrape interval to where a series begins.
    evaluated(inputs, **{"round(fleet__gpuwhy_observed_seconds__increase1h, 100)": {"{}": 3600}})
