"""Options from flags, environment and file to one configuration, or to sentences that say what to mend."""

from __future__ import annotations

import errno
import os
import string
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwhy import catalog, config
from gpuwhy.config import Config, ConfigError, describe, load, options
from gpuwhy.verdict import cards

NOWHERE = Path("/nonexistent/config.yaml")
SECTIONS = ", ".join(Config.__struct_fields__)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def problems(flags=None, env=None, path=None, default_path=NOWHERE) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, env or {}, path, default_path=default_path)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def file_problems(file: Path, text: str | bytes) -> list[str]:
    """The problems of a file, which they name F."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [problem.replace(str(file), "F") for problem in problems(path=file)]


def test_without_anything_the_defaults_hold() -> None:
    """No file, no environment and no flags give the defaults, and say so."""
    loaded = load({}, {}, default_path=NOWHERE)
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.config.agent.source == "auto"
    assert loaded.config.http.address == ("", 9837)


def test_each_layer_overrides_the_ones_below(file: Path) -> None:
    """A flag beats the environment, that the file, and that the default; the origin names the winner."""
    file.write_text("agent:\n  profile: latency\n  interval_seconds: 7\n  log_level: debug\n")
    env = {"GPUWHY__AGENT__INTERVAL_SECONDS": "8", "GPUWHY__AGENT__LOG_LEVEL": "warning"}
    loaded = load({"agent.log_level": "error"}, env, file)
    agent = loaded.config.agent
    assert (agent.source, agent.profile, agent.interval_seconds, agent.log_level) == (
        "auto",
        "latency",
        8,
        "error",
    )
    assert loaded.origins == {
        "agent.source": "default",
        "agent.profile": f"{file}:2",
        "agent.interval_seconds": "environment GPUWHY__AGENT__INTERVAL_SECONDS",
        "agent.replay_speed": "default",
        "agent.replay_loop": "default",
        "agent.dcgm_address": "default",
        "agent.dcgm_bindings": "default",
        "agent.dcgm_library": "default",
        "agent.exporter_url": "default",
        "agent.expected_gpus": "default",
        "agent.host_root": "default",
        "agent.log_level": "flag --log-level",
        "http.listen": "default",
        "http.web_config_file": "default",
        **{
            option.key: "default"
            for option in options()
            if option.section in {"cards", "workloads", "store", "render", "report"}
        },
    }


@pytest.mark.parametrize(
    "option", [option for option in options() if not option.items], ids=lambda option: option.key
)
def test_every_option_can_be_set_everywhere(option: config.Option, file: Path) -> None:
    """File and environment, and the flag where there is one, set each option to the same value."""
    text = {
        "agent.source": "replay:a,b",
        "agent.dcgm_address": "node-1:5556",
        "agent.dcgm_bindings": "/opt/dcgm/python3",
        "agent.dcgm_library": "/opt/dcgm/lib",
        "agent.exporter_url": "http://node-1:9400/metrics",
        "agent.profile": "latency",
        "agent.interval_seconds": "7.5",
        "agent.replay_speed": "4",
        "agent.replay_loop": "true",
        "agent.log_level": "error",
        "agent.host_root": "/host",
        "http.listen": "127.0.0.1:80",
        "http.web_config_file": "/etc/gpuwhy/web.yaml",
        "workloads.most": "50",
        "workloads.label_length": "64",
        "workloads.retention_seconds": "600",
        "workloads.profiles": '{"serving/*": "latency"}',
        "workloads.profile_label": "example.com/profile",
        "workloads.owner_label": "team",
        "workloads.kubelet_socket": "/run/kubelet.sock",
        "workloads.kubernetes_api": "false",
        "workloads.slurm_job_folder": "/run/jobs",
        "workloads.slurm_scontrol": "/opt/slurm/bin/scontrol",
        "agent.expected_gpus": "8",
        "store.enabled": "false",
        "store.path": "/srv/gpuwhy/history.db",
        "store.retention_days": "70",
        "store.most_mebibytes": "64",
        "render.selector": 'cluster="a",job=~"gpuwhy.*"',
        "render.host_label": "node",
        "render.runbook_url": "https://wiki.example/RUNBOOK.md",
        "render.grafana_url": "https://grafana.example",
        "render.price_per_gpu_hour": "2.5",
        "render.currency": "EUR",
        "render.kubernetes_namespace": "monitoring",
        "render.alert_labels": '{"team": "ml"}',
        "render.kubernetes_labels": '{"release": "kube-prometheus-stack"}',
        "report.source": "https://prometheus.example/prefix",
        "report.timezone": "Europe/Berlin",
        "report.selector": 'cluster="a"',
        "report.tenant": "team-a",
        "report.token_file": "/etc/gpuwhy/token",
        "report.ca_file": "/etc/ssl/ca.pem",
        "report.timeout_seconds": "90",
    }[option.key]
    replay = {} if option.key == "agent.source" else {"agent.source": "replay:a"}
    file.write_text(f"{option.section}:\n  {option.name}: {text}\n")
    ways = [load(replay, {}, file), load(replay, {option.environment: text}, default_path=NOWHERE)]
    if option.flag:
        ways.append(load({**replay, option.key: text}, {}, default_path=NOWHERE))
    values = {row.value for way in ways for row in describe(way) if row.key == option.key}
    assert values == {text}
    assert all(way.config != load(replay, {}, default_path=NOWHERE).config for way in ways)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{foo: latancy}",
            "workloads.profiles.foo is 'latancy' (F:2): set it to latency, throughput or unknown, or remove it",
        ),
        (
            '{"pod:foo": latency}',
            "workloads.profiles.pod:foo (F:2) is not named as it must be: workloads.profiles takes",
        ),
        ('{"kubernetes:": latency}', "workloads.profiles.kubernetes: (F:2) is not named as it must be"),
        ("{foo: {bar: latency}}", "workloads.profiles.foo is a mapping (F:2): set it to latency, throughput"),
        ("[foo]", "workloads.profiles is a list (F:2): set it to a mapping from selector"),
    ],
)
def test_what_is_wrong_with_a_selector_or_its_value(text: str, problem: str, file: Path) -> None:
    """Of a mapping the entry is named, and whether its name or its value has to be mended."""
    (said,) = file_problems(file, f"workloads:\n  profiles: {text}\n")
    assert said.startswith(problem)


@pytest.mark.parametrize("text", ['""', "host"])
def test_the_hosts_root_is_a_path(text: str, file: Path) -> None:
    (said,) = file_problems(file, f"agent:\n  host_root: {text}\n")
    assert "set it to an absolute path, / on the host itself" in said


RENDER = {
    "selector": (
        ['job="a"', 'a=~"b|c", d!="e"', r'a="with \"quotes\" and \\"'],
        [
            "job",
            "job=a",
            'verdict="starving"',
            'a="b",gpu="0"',
            'job="a",',
            '{job="a"}',
            'job="a"} or x{b="c"',
            'job="a\nb"',
            '1a="b"',
        ],
    ),
    "host_label": (["node", "_host"], ["", "my-label", "__name__", "1a", "gpu", "workload", "job"]),
    "runbook_url": (["", "https://h/x"], ["h/x", "javascript:alert(1)", "https://h/x#y"]),
    "grafana_url": (["", "http://h:3000"], ["h:3000"]),
    "currency": (["EUR"], ["euro", ""]),
    "kubernetes_namespace": (["", "monitoring"], ["Not-A-Name", "-a", "a/b"]),
}


@pytest.mark.parametrize(
    ("key", "text", "good"),
    [
        (key, text, good)
        for key, kinds in RENDER.items()
        for good, texts in zip((True, False), kinds, strict=True)
        for text in texts
    ],
)
def test_what_goes_into_rules_and_dashboards_is_checked(key: str, text: str, good: bool) -> None:
    """A text that would break a query or an object is refused before anything is rendered."""
    flags = {f"render.{key}": text}
    if good:
        assert getattr(load(flags, {}, default_path=NOWHERE).config.render, key) == text
    else:
        with pytest.raises(ConfigError, match=f"render.{key}"):
            load(flags, {}, default_path=NOWHERE)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{A: {severity: page}}",
            "render.alerts.A.severity is 'page' (F:2): set it to critical, warning or info",
        ),
        (
            "{A: {window_seconds: 5}}",
            "render.alerts.A.window_seconds is '5' (F:2): set it to a whole number from 10",
        ),
        (
            "{A: {threshold: -1}}",
            "render.alerts.A.threshold is '-1' (F:2): set it to a number from 0 to 1e+09",
        ),
        ("{A: {treshold: 1}}", "render.alerts.A.treshold (F:2) is not known: write threshold, or remove it"),
        ("{A: 5}", "render.alerts.A is '5' (F:2): set it to a mapping with any of enabled, severity"),
    ],
)
def test_what_is_wrong_with_an_alert(text: str, problem: str, file: Path) -> None:
    """Of an alert the entry is named, and what it takes."""
    (said,) = file_problems(file, f"render:\n  alerts: {text}\n")
    assert said.startswith(problem)


@pytest.mark.parametrize("labels", ['{"a b": c}', "{severity: page}", "{gpu: x}", "{__a: x}"])
def test_labels_of_alerts_are_checked(labels: str, file: Path) -> None:
    (said,) = file_problems(file, f"render:\n  alert_labels: {labels}\n")
    assert said.startswith("render.alert_labels")


def test_own_labels_are_those_of_the_catalogue() -> None:
    """What a user may not match or call a host is each label that gpuwhy itself sets."""
    assert {label for series in catalog.SERIES for label in series.labels} == config.OWN_LABELS


@pytest.mark.parametrize("labels", ['{"a b": c}', '{a: "b c"}', '{"": x}', '{a: "-"}'])
def test_labels_of_objects_are_checked(labels: str, file: Path) -> None:
    (said,) = file_problems(file, f"render:\n  kubernetes_labels: {labels}\n")
    assert said.startswith("render.kubernetes_labels")


def test_flags_may_bring_values_of_their_type() -> None:
    """A command line that has parsed its numbers and switches hands them on as they are; None is not given."""
    flags = {
        "agent.source": "replay:bundled",
        "agent.replay_speed": 2.5,
        "agent.replay_loop": True,
        "http.listen": None,
    }
    loaded = load(flags, {}, default_path=NOWHERE)
    assert (loaded.config.agent.replay_speed, loaded.config.agent.replay_loop) == (2.5, True)
    assert loaded.origins["http.listen"] == "default"


def test_an_unknown_flag_is_a_mistake_of_the_program() -> None:
    """A flag that no option has is not the user's fault, and fails at once."""
    with pytest.raises(KeyError):
        load({"agent.nonsense": 1}, {}, default_path=NOWHERE)


def test_what_kubernetes_injects_is_ignored() -> None:
    """Variables of a Service named gpuwhy, with single underscores, are no options."""
    env = {
        "GPUWHY_PORT": "tcp://10.0.0.1:9837",
        "GPUWHY_SERVICE_HOST": "10.0.0.1",
        "GPUWHY_AGENT_SOURCE": "nvml",
    }
    assert load({}, env, default_path=NOWHERE).config == Config()


def test_the_default_file_is_read_where_it_is(file: Path) -> None:
    """Without --config the default path is read if it is there."""
    file.write_text("http: {listen: ':1'}\n")
    loaded = load({}, {}, default_path=file)
    assert loaded.config.http.address == ("", 1)
    assert loaded.origins["http.listen"] == f"{file}:1"


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "---\n", "null\n", "{}\n", "agent:\n", "store: {}\nreport:\n", "\ufeffhttp: {}\n"],
)
def test_a_file_may_say_nothing(file: Path, text: str) -> None:
    """An empty file and an empty section are fine."""
    file.write_text(text)
    assert load({}, {}, file).config == Config()


def test_cards_are_overridden_by_part_of_their_name(file: Path) -> None:
    """Overrides come out as the card table takes them, without what they leave alone."""
    file.write_text(
        "cards:\n  overrides:\n    H200: {dram_peak_ratio: 0.9}\n    h200 nvl: {context_ratio: 0.1}\n"
    )
    numbers = load({}, {}, file).config.cards.numbers
    assert numbers == {"H200": {"dram_peak_ratio": 0.9}, "h200 nvl": {"context_ratio": 0.1}}
    card = cards.find("NVIDIA H200 NVL", numbers)
    assert (card.dram_peak_ratio, card.context_ratio) == (0.9, 0.1)


def test_a_mapping_in_the_environment_replaces_the_files(file: Path) -> None:
    """Overrides given as YAML in the environment are not merged with the file's."""
    file.write_text("cards: {overrides: {H100: {dram_peak_ratio: 0.9}}}\n")
    env = {"GPUWHY__CARDS__OVERRIDES": "{A100: {tensor_peak_ratio: 0.8}}"}
    loaded = load({}, env, file)
    assert loaded.config.cards.numbers == {"A100": {"tensor_peak_ratio": 0.8}}
    assert loaded.origins["cards.overrides"] == "environment GPUWHY__CARDS__OVERRIDES"


def test_overrides_have_the_bounds_of_the_card_table() -> None:
    """The numbers that can be overridden, and their bounds, are those of the card table."""
    [row] = [option for option in options() if option.key == "cards.overrides"]
    words = {name: f"a number from {low:g} to {high:g}" for name, (low, high) in cards.BOUNDS.items()}
    assert {item.name: item.expected for item in row.items} == words


def test_a_configuration_cannot_be_changed() -> None:
    """Sections are frozen."""
    with pytest.raises(AttributeError):
        Config().agent.source = "nvml"


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("auto", ()),
        ("nvml", ()),
        ("replay:bundled", ("bundled",)),
        ("replay:/a b/c.jsonl", ("/a b/c.jsonl",)),
        ("replay:a,b:c,d", ("a", "b:c", "d")),
    ],
)
def test_sources(source: str, paths: tuple[str, ...]) -> None:
    """Each form of a source is taken, and a replay gives its paths."""
    assert load({"agent.source": source}, {}, default_path=NOWHERE).config.agent.replay_paths == paths


@pytest.mark.parametrize(
    "source",
    ["", "DCGM", "exporter", "NVML", "nvml:0", "replay", "replay:", "replay:a,", "replay:,a", "replay:a,,b"],
)
def test_what_is_no_source_is_refused(source: str) -> None:
    """Other names, and replays with an empty path, are refused."""
    [problem] = problems({"agent.source": source})
    assert problem.startswith("agent.source ")


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (":9837", ("", 9837)),
        (":0", ("", 0)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
        ("localhost:80", ("localhost", 80)),
        ("node-1.example:80", ("node-1.example", 80)),
        ("[::]:9837", ("::", 9837)),
        ("[fe80::1%eth0]:9837", ("fe80::1%eth0", 9837)),
    ],
)
def test_addresses(listen: str, address: tuple[str, int]) -> None:
    """Each form of an address is taken apart."""
    assert load({"http.listen": listen}, {}, default_path=NOWHERE).config.http.address == address


@pytest.mark.parametrize(
    "listen",
    [
        "9837",
        "host",
        "host:",
        ":65536",
        ":-1",
        "::1:80",
        "[::1]",
        "[::1:80",
        "a]:1",
        "host:http",
        "http://x:80",
        "a b:80",
        ":80\n",
        ":٣",
    ],
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    """Text without a port, with a bad one, or with an IPv6 host without brackets is refused."""
    [problem] = problems({"http.listen": listen})
    assert problem.startswith("http.listen is ")


@pytest.mark.parametrize(
    "text",
    [
        "0.99",
        "601",
        "0",
        "-5",
        "nan",
        ".nan",
        "inf",
        ".inf",
        "1e999",
        "9" * 5000,
        "5s",
        "five",
        "0x10",
        "1_0",
        "true",
        "[5]",
        "{}",
    ],
)
def test_what_is_no_number_in_bounds_is_refused(file: Path, text: str) -> None:
    """A number outside its bounds, none at all, or one with a unit is refused; from the environment likewise."""
    [problem] = file_problems(file, f"agent: {{interval_seconds: {text}}}")
    assert problem.startswith("agent.interval_seconds is ")
    assert "(F:1): set it to a number from 1 to 600, or remove it for the default 5" in problem
    assert len(problem) < 250
    [problem] = problems(env={"GPUWHY__AGENT__INTERVAL_SECONDS": text})
    assert "(environment GPUWHY__AGENT__INTERVAL_SECONDS): set it to a number" in problem


MESSAGES: list[tuple[str | bytes, str]] = [
    (
        "agent:\n  source: dcgn\n",
        (
            "agent.source is 'dcgn' (F:2): set it to auto, dcgm, dcgm-embedded, nvml, dcgm-exporter, "
            "replay:PATH[,PATH...] or replay:bundled, "
            "or remove it for the default auto"
        ),
    ),
    (
        "agent: {profile: latncy}",
        "agent.profile is 'latncy' (F:1): set it to throughput, latency or unknown, or remove it for the default unknown",
    ),
    (
        "agent: {replay_loop: yes}",
        "agent.replay_loop is 'yes' (F:1): set it to true or false, or remove it for the default false",
    ),
    (
        "agent: {replay_speed: 0}",
        "agent.replay_speed is '0' (F:1): set it to a number from 0.1 to 1000, or remove it for the default 1",
    ),
    (
        "http:\n  listen: 9837",
        (
            "http.listen is '9837' (F:2): set it to HOST:PORT, [IPV6]:PORT or :PORT with a port up to 65535, "
            "or remove it for the default :9837"
        ),
    ),
    (
        "http:\n  listen:\n",
        (
            "http.listen has no value (F:2): set it to HOST:PORT, [IPV6]:PORT or :PORT with a port up to 65535, "
            "or remove it for the default :9837"
        ),
    ),
    (
        "http: {listen: [':80', ':81']}",
        (
            "http.listen is a list (F:1): set it to HOST:PORT, [IPV6]:PORT or :PORT with a port up to 65535, "
            "or remove it for the default :9837"
        ),
    ),
    (
        "cards:\n  overrides:\n    H100:\n      dram_peak_ratio: 1.2\n",
        (
            "cards.overrides.H100.dram_peak_ratio is '1.2' (F:4): set it to a number from 0.3 to 1, "
            "or remove it for the built-in number"
        ),
    ),
    (
        "cards: {overrides: {NVIDIA H100: {dram_peak: 1}}}",
        "cards.overrides.'NVIDIA H100'.dram_peak (F:1) is not known: write dram_peak_ratio, or remove it",
    ),
    (
        "cards: {overrides: {H100: 0.9}}",
        (
            "cards.overrides.H100 is '0.9' (F:1): set it to a mapping with any of dram_peak_ratio, tensor_peak_ratio, "
            "fp64_peak_ratio, fp32_peak_ratio, fp16_peak_ratio, full_load_clock_ratio, context_ratio, "
            "or remove it for the built-in numbers"
        ),
    ),
    (
        "cards: {overrides: 0.9}",
        (
            "cards.overrides is '0.9' (F:1): set it to a mapping from part of a model's name to its numbers, "
            "or remove it for the default {}"
        ),
    ),
    (
        "agent:\n  interval: 5\n",
        "agent.interval (F:2) is not known: write interval_seconds, or remove it",
    ),
    ("cards: {H200: {}}", "cards.H200 (F:1) is not known: use any of overrides, or remove it"),
    ("agnet: {source: nvml}", "section agnet (F:1) is not known: write agent, or remove it"),
    ("listen: ':80'", "section listen (F:1) is not known: write it in section http, or remove it"),
    ("zzz: 1", f"section zzz (F:1) is not known: use any of {SECTIONS}, or remove it"),
    (
        "http: [listen]",
        "section http is a list (F:1): set it to a mapping with any of listen, web_config_file, or remove it for the defaults",
    ),
    (
        "just words",
        (
            f"the top level is 'just words' (F:1): set it to a mapping with any of {SECTIONS}, "
            "or remove it for the defaults"
        ),
    ),
    (
        "http: {listen: ':1'}\nagent: {}\nhttp: {listen: ':2'}\n",
        "F:3:1 is not the YAML that gpuwhy reads (http stands here again, first in F:1): keep one",
    ),
    (
        "cards:\n  overrides:\n    H100: {dram_peak_ratio: 1, dram_peak_ratio: 1}\n",
        "F:3:32 is not the YAML that gpuwhy reads (dram_peak_ratio stands here again, first in F:3): keep one",
    ),
    ("? [a]\n: 1\n", "F:1:3 is not the YAML that gpuwhy reads (a key is no text): write a name"),
    (
        "agent:\n\tsource: nvml\n",
        "F:2:1 is not the YAML that gpuwhy reads (found character '\\t' that cannot start any token): indent with spaces",
    ),
    (
        "http:\n  listen: a: b\n",
        "F:2:12 is not the YAML that gpuwhy reads (mapping values are not allowed here): mend it there, or quote the text",
    ),
    (
        "agent: &a {}\nhttp: *a\n",
        "F:2:7 is not the YAML that gpuwhy reads (aliases are not supported): mend it there, or quote the text",
    ),
    (
        "agent: {}\n---\nhttp: {}\n",
        "F:2:1 is not the YAML that gpuwhy reads (found another document): mend it there, or quote the text",
    ),
    (
        "http:\n  listen: '\x07'\n",
        "F:2:12 is not the YAML that gpuwhy reads (special characters are not allowed): remove the character",
    ),
    ("[" * 50_000, "F is not the YAML that gpuwhy reads (too many levels): make it flatter"),
    (
        'http: {listen: "\\U00110000"}',
        "F is not the YAML that gpuwhy reads (an escape stands for no character): write the character itself",
    ),
    (
        b"http:\n  listen: \xff\n",
        "configuration file F has a byte in line 2 that is not UTF-8: save it as UTF-8",
    ),
    ("#" * 70_000, "configuration file F is larger than 64 KiB: name the YAML file with the options"),
]


@pytest.mark.parametrize(("text", "message"), MESSAGES, ids=[message[:48] for _, message in MESSAGES])
def test_messages(file: Path, text: str | bytes, message: str) -> None:
    """One mistake in a file gives one sentence with the place, what is wrong and what to do."""
    assert file_problems(file, text) == [message]


def test_messages_about_the_environment() -> None:
    """An unknown name and a broken mapping in the environment are named as they are written there."""
    env = {
        "GPUWHY__HTTP__LISTN": ":80",
        "GPUWHY__STORE__DAY": "monday",
        "GPUWHY__agent__source": "nvml",
        "GPUWHY__CARDS__OVERRIDES": "{H200: ",
        "GPUWHY__AGENT__PROFILE": "",
    }
    assert problems(env=env) == (
        (
            "environment GPUWHY__CARDS__OVERRIDES is not the YAML that gpuwhy reads "
            "(expected the node content, but found '<stream end>'): mend it there, or quote the text"
        ),
        "environment GPUWHY__HTTP__LISTN is not known: write GPUWHY__HTTP__LISTEN, or remove it",
        "environment GPUWHY__STORE__DAY is not known: write GPUWHY__STORE__PATH, or remove it",
        "environment GPUWHY__agent__source is not known: write GPUWHY__AGENT__SOURCE, or remove it",
        (
            "agent.profile has no value (environment GPUWHY__AGENT__PROFILE): set it to throughput, latency or unknown, "
            "or remove it for the default unknown"
        ),
    )


def test_options_that_do_not_go_together() -> None:
    """Replay options without a replay stop the start, and the message names both places."""
    flags = {"agent.source": "nvml", "agent.replay_speed": 2.0}
    assert problems(flags, {"GPUWHY__AGENT__REPLAY_LOOP": "true"}) == (
        (
            "agent.replay_speed = 2 (flag --speed) is for replays, and agent.source is nvml (flag --source): "
            "remove it, or set agent.source to replay:PATH"
        ),
        (
            "agent.replay_loop = true (environment GPUWHY__AGENT__REPLAY_LOOP) is for replays, and agent.source is nvml "
            "(flag --source): remove it, or set agent.source to replay:PATH"
        ),
    )


def test_all_problems_are_told_at_once(file: Path) -> None:
    """Problems of file, environment and flags come together."""
    file.write_text("agent: {interval_seconds: 0, x: 1}\nfoo: 1\n")
    found = problems({"http.listen": "x"}, {"GPUWHY__AGENT__PROFILE": "fast", "GPUWHY__A": "1"}, file)
    assert len(found) == 6


def test_a_named_file_has_to_exist() -> None:
    """--config of a file that is not there says how to do without."""
    assert problems(path=NOWHERE, default_path=Path("/etc/gpuwhy/config.yaml")) == (
        (
            "configuration file /nonexistent/config.yaml does not exist: create it, or leave --config away "
            "to use /etc/gpuwhy/config.yaml or the defaults"
        ),
    )


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A folder, or a file of somebody else, is named with the reason, at the default path too."""
    reason = "Is a directory"
    message = (
        f"configuration file {tmp_path} cannot be read ({reason}): make it a file that this user may read"
    )
    assert problems(path=tmp_path) == (message,)
    assert problems(default_path=tmp_path) == (message,)


def test_a_file_of_somebody_else_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without permission the default file stops the start as well."""

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    [problem] = problems()
    assert "cannot be read (Permission denied)" in problem


def test_describe_reads_back(file: Path) -> None:
    """What check-config prints, written as a file, gives the same configuration."""
    flags = {"agent.source": "replay:a", "agent.interval_seconds": 7.25, "agent.replay_loop": True}
    env = {"GPUWHY__CARDS__OVERRIDES": "{H200 NVL: {dram_peak_ratio: 0.5}}"}
    loaded = load(flags, env, default_path=NOWHERE)
    rows = describe(loaded)
    assert [row.key for row in rows] == [option.key for option in options()]
    sections: dict[str, str] = {}
    for row in rows:
        section, name = row.key.split(".")
        sections[section] = sections.get(section, f"{section}:\n") + f"  {name}: {row.value}\n"
    file.write_text("".join(sections.values()))
    assert load({}, {}, file).config == loaded.config


def test_option_rows_are_complete() -> None:
    """Each option says what it takes and means, and flags are not given twice."""
    for option in options():
        for row in (option, *option.items):
            assert row.description
            assert row.expected
    flags = [option.flag for option in options() if option.flag]
    assert len(flags) == len(set(flags))


def _survives(file: Path, text: bytes, env: dict[str, str] | None = None) -> None:
    file.write_bytes(text)
    found: tuple[str, ...] = ()
    loaded = None
    try:
        loaded = load({}, env or {}, file)
    except ConfigError as error:
        found = error.problems
    assert (loaded is None) == bool(found)
    for sentence in found:
        assert "\n" not in sentence
        sentence.encode()
    if loaded:
        for row in describe(loaded):
            row.value.encode()
        assert msgspec.convert(msgspec.to_builtins(loaded.config), Config) == loaded.config


KEYS = st.sampled_from(
    [
        "agent",
        "http",
        "cards",
        "store",
        "source",
        "interval_seconds",
        "listen",
        "overrides",
        "H200",
        "dram_peak_ratio",
        "replay_loop",
        "<<",
    ]
) | st.text(max_size=5)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.binary(max_size=4)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(tree=st.dictionaries(KEYS, TREES, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_yaml_gives_a_configuration_or_its_problems(
    tmp_path_factory: pytest.TempPathFactory, tree: object
) -> None:
    """Whatever a YAML file holds, loading it gives a valid configuration or a ConfigError."""
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    _survives(file, yaml.dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@given(
    text=st.text(alphabet=string.printable + "é\u2028\ufeff", max_size=60)
    | st.text(alphabet="a:-?[]{},&*!|>'\"%@`#~<= \n\t0\\Ux", max_size=40)
)
@example(text='agent: {profile: "\\ud800"}')
@example(text='agent: {source: "replay:\\ud800"}')
@example(text='cards: {overrides: {"\\ud800": {dram_peak_ratio: 0.5}}}')
@example(text='"\\ud800": 1')
@example(text="agent: {interval_seconds: !!python/object/apply:os.getpid []}")
@example(text="agent: &a [*a]")
@example(text='"\\Uffffffff"')
@example(text="%YAML 1.1.1\n---\n")
@example(text="%TAG ! tag:x,\n--- !y z")
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_configuration_or_its_problems(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """Whatever text a file or the environment holds, loading it gives a valid configuration or a ConfigError."""
    file = tmp_path_factory.getbasetemp() / "text.yaml"
    env = {} if "\0" in text else {"GPUWHY__CARDS__OVERRIDES": text, "GPUWHY__AGENT__SOURCE": text}
    _survives(file, text.encode())
    _survives(file, b"", env)


@given(content=st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_a_configuration_or_its_problems(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """A file that is no text gives a ConfigError."""
    _survives(tmp_path_factory.getbasetemp() / "bytes.yaml", content)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (
            "dcgm_address",
            ["", "127.0.0.1:5555", "[::1]:5555", "/run/dcgm.sock"],
            ["5555", ":5555", "host", "h:0", "a:99999"],
        ),
        ("dcgm_bindings", ["", "/opt/x"], ["opt/x", "~/x"]),
        (
            "exporter_url",
            ["http://h:9400/metrics", "https://h/"],
            ["", "h:9400", "ftp://h/", "http://", "http://u@h/", "http://h:0/"],
        ),
    ],
)
def test_where_sources_are(key: str, good: list[str], bad: list[str]) -> None:
    """Addresses, folders and URLs are checked before anything is opened."""
    for text in good:
        assert getattr(load({f"agent.{key}": text}, {}, default_path=NOWHERE).config.agent, key) == text
    for text in bad:
        with pytest.raises(ConfigError, match=f"agent.{key}"):
            load({f"agent.{key}": text}, {}, default_path=NOWHERE)
