"""``sglang-telemetry assets``: what it prints and writes, and what it refuses with one clear line."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sglang_telemetry.assets.options import find_options
from sglang_telemetry.assets.source import load
from tests.harness.mounts import tmpfs
from tests.harness.processes import output_of

OPTION = next(one for one in find_options(load().rules).values() if one.timed)


def assets(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "sglang_telemetry", "assets", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(*arguments: str | Path) -> str:
    """The one line of a refusal."""
    done = assets(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    [line] = done.stderr.splitlines()
    prefix = "sglang-telemetry assets: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


def test_export(tmp_path: Path) -> None:
    """What to put into prometheus.yml, which promtool takes, and a last line that says what was done."""
    done = assets("export", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines, grafana, last = done.stdout.splitlines()
    assert head == "prometheus.yml, if it is not there yet:"
    dashboards = f"{tmp_path}/out/dashboards"
    assert grafana == f"Grafana: import {dashboards}/*.json, or provision them as in {dashboards}/provisioning"
    assert (tmp_path / "out/dashboards/provisioning/dashboards/sglang-telemetry.yml").is_file()
    (tmp_path / "prometheus.yml").write_text("\n".join(line[2:] for line in lines) + "\n")
    said = output_of("promtool", "check", "config", str(tmp_path / "prometheus.yml"), timeout=60)
    assert f"{len(load().rules)} rule files found" in said
    count = sum(path.is_file() for path in (tmp_path / "out").rglob("*"))
    assert last == f"assets ok: {count} files written to {tmp_path}/out"
    output_of("amtool", "check-config", str(tmp_path / "out/alertmanager/alertmanager.yml"), timeout=60)


def test_again(tmp_path: Path) -> None:
    """Nothing to do is no error; another export over it is, unless it is forced."""
    assets("export", tmp_path)
    again = assets("export", tmp_path)
    count = sum(path.is_file() for path in tmp_path.rglob("*"))
    assert again.stdout.splitlines()[-1] == f"assets ok: 0 files written to {tmp_path}, {count} unchanged"
    assert "give --force to replace them" in refused("export", tmp_path, "--label", "team=rl")
    forced = assets("export", tmp_path, "--label", "team=rl", "--force")
    assert (forced.returncode, assets("export", tmp_path, "--label", "team=rl").returncode) == (0, 0)


def test_a_rule_file_of_an_earlier_version(tmp_path: Path) -> None:
    """Prometheus would load it too: told."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/old.yml").write_text("groups: []\n")
    first = assets("export", tmp_path).stdout.splitlines()[0]
    assert (
        first == f"note: {tmp_path}/rules/old.yml is no part of this export; remove it if an earlier version wrote it"
    )


def test_everything_at_once(tmp_path: Path) -> None:
    """All options together, as a platform engineer gives them."""
    wishes = ("--set", f"{OPTION.name}=1h", "--select", 'job="rl",cluster=~"a|b"', "--label", "team=rl")
    links = ("--runbook-base", "https://wiki.example/rl", "--dashboard-base", "https://grafana.example")
    place = ("--namespace", "monitoring", "--metadata-label", "release=kube-prometheus-stack")
    pods = ("--pod-selector", "app=trainer", "--port-name", "telemetry")
    done = assets("export", tmp_path, "--format", "prometheus-operator", *wishes, *links, *place, *pods)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"apply: kubectl apply -f {tmp_path} -f {tmp_path}/dashboards"
    assert [path.name for path in (tmp_path / "dashboards").glob("*.json")] == []
    pod_monitor = yaml.safe_load((tmp_path / "podmonitor.yaml").read_text())
    assert pod_monitor["metadata"] == {
        "name": "sglang-telemetry",
        "namespace": "monitoring",
        "labels": {"app.kubernetes.io/name": "sglang-telemetry", "release": "kube-prometheus-stack"},
    }
    assert pod_monitor["spec"]["selector"] == {"matchLabels": {"app": "trainer"}}
    rules = {path.name: path.read_text() for path in tmp_path.glob("prometheusrule-*.yaml")}
    assert len(rules) == len(load().rules)
    assert find_options(rules)[OPTION.name].default == "1h"
    alerts = [
        one for text in rules.values() for group in yaml.safe_load(text)["spec"]["groups"] for one in group["rules"]
    ]
    assert {one["labels"]["team"] for one in alerts if "alert" in one} == {"rl"}


def test_mimir(tmp_path: Path) -> None:
    """It says how they are loaded."""
    done = assets("export", tmp_path, "--format", "mimir", "--namespace", "rl")
    loaded, grafana, _ = done.stdout.splitlines()
    assert loaded == f"load: mimirtool rules load {tmp_path}/rules/*.yml"
    assert grafana.startswith(f"Grafana: import {tmp_path}/dashboards/*.json")
    spaces = [yaml.safe_load(path.read_text())["namespace"] for path in (tmp_path / "rules").glob("*.yml")]
    assert sorted(spaces) == sorted(f"rl_{name.removesuffix('.yml')}" for name in load().rules)


def test_options() -> None:
    """A line each in a pipe: name, default, where and when."""
    done = assets("options")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["OPTION", "DEFAULT", "USED", "IN:", "WHEN", "TO", "CHANGE", "IT"]
    options = find_options(load().rules)
    assert [line.split()[:2] for line in lines] == [[one.name, one.default] for one in options.values()]
    assert all(
        ", ".join(one.rules) in line and one.about in line for one, line in zip(options.values(), lines, strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "nothing"), "--set 'nothing': write NAME=VALUE; `sglang-telemetry assets options` lists the names"),
        (("--set", "nothing=1"), "--set 'nothing': no such option"),
        (("--set", f"{OPTION.name}=soon"), f"--set {OPTION.name}: 'soon' is no duration"),
        (
            ("--set", f"{OPTION.name}=1m", "--set", f"{OPTION.name}=2m"),
            f"--set {OPTION.name} is given twice: 1m and 2m",
        ),
        (("--select", 'run="a"'), "--select: run is a label of the metrics themselves"),
        (("--select", "job=rl"), "--select 'job=rl': write label matchers"),
        (("--select", ""), "--select '': write label matchers"),
        (("--label", "severity=info"), "--label severity: the alerts use it themselves"),
        (("--label", "team={{ $x }}"), "--label team: its value is some text on one line"),
        (("--runbook-base", "wiki"), "--runbook-base 'wiki': write an address"),
        (("--dashboard-base", "https://u:p@g"), "--dashboard-base 'https://u:p@g': write an address"),
        (("--namespace", "x"), "--namespace is for --format prometheus-operator or mimir"),
        (("--pod-selector", "a=b"), "--pod-selector is for --format prometheus-operator"),
        (("--port-name", "x", "--format", "mimir"), "--port-name is for --format prometheus-operator"),
        (
            ("--metadata-label", "a", "--format", "prometheus-operator"),
            "--metadata-label 'a': write a Kubernetes label",
        ),
        (("--namespace", "A", "--format", "mimir"), "--namespace 'A': write lower-case letters"),
    ],
)
def test_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """One line that names the option and the fix, and nothing is written."""
    assert refused("export", tmp_path / "out", *arguments).startswith(words)
    assert not (tmp_path / "out").exists()


def test_a_file_for_a_folder(tmp_path: Path) -> None:
    """One line."""
    (tmp_path / "out").write_text("theirs")
    line = refused("export", tmp_path / "out")
    assert line.startswith(f"cannot write to {tmp_path}/out: ")
    assert "give a folder that can be written" in line
    assert (tmp_path / "out").read_text() == "theirs"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\udcffb"])
def test_no_folder(name: str) -> None:
    """An empty name, of an unset variable, is not the current folder; what cannot be printed cannot be told."""
    assert refused("export", name).startswith(f"{name!r} is no folder")


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    """What is printed can be used as it is."""
    done = assets("export", tmp_path / "it's here: #1")
    (tmp_path / "prometheus.yml").write_text("\n".join(line[2:] for line in done.stdout.splitlines()[1:3]) + "\n")
    assert "rule files found" in output_of("promtool", "check", "config", str(tmp_path / "prometheus.yml"), timeout=60)
    line = assets("export", tmp_path / "it's here: #2", "--format", "mimir").stdout.splitlines()[0]
    command = line.removeprefix("load: mimirtool rules load ")
    listed = subprocess.run(["sh", "-c", f"ls {command}"], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == len(load().rules)


def test_full_disk(tmp_path: Path) -> None:
    """One line, and nothing is there."""
    with tmpfs(tmp_path / "disk", size="16k") as disk:
        assert "No space left on device" in refused("export", disk / "out")
        assert [path for path in disk.rglob("*") if path.is_file()] == []


def test_read_only_folder(tmp_path: Path) -> None:
    """One line."""
    with tmpfs(tmp_path / "disk", read_only=True) as disk:
        assert "Read-only file system" in refused("export", disk / "out")
