"""Checks of rendered manifests, for scripts/chart. Each command prints a summary of its check, or its findings. With
findings it exits with 1.

  check.py schema FILE VERSION...         every object fits Kubernetes' own schema, without unknown fields
  check.py monitoring FILE ROOT           rules and dashboards are those of the repository; promtool accepts the rules
  check.py configuration FILE PROGRAM     `watermaster check` accepts the configuration
  check.py strimzi FILE FOLDER            topics and permissions are exactly those that the configuration needs
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import yaml

# Objects of operators: Kubernetes has no schema for them, and the operators' schemas are not available offline.
FOREIGN = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "KafkaTopic": "kafka.strimzi.io/v1",
    "KafkaUser": "kafka.strimzi.io/v1",
}


def load(path):
    text = pathlib.Path(path).read_text()
    return [each for each in yaml.load_all(text, Loader=Strict) if each is not None]


class Strict(yaml.SafeLoader):
    """Refuses repeated keys. Without this class the last value would silently replace the others."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def name(manifest):
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def schema(path, *versions):
    import kubernetes_validate

    findings, checked, skipped = [], 0, []
    for manifest in load(path):
        if FOREIGN.get(manifest["kind"]) == manifest["apiVersion"]:
            skipped.append(name(manifest))
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(part) for part in error.path)
                findings.append(f"{name(manifest)}, Kubernetes {version}: {where}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError as error:
                findings.append(f"{name(manifest)}: {error.message}")
        checked += 1
    if not checked:
        findings.append(f"{path} has no objects")
    note = f"{checked} objects, Kubernetes {' and '.join(versions)}"
    if skipped:
        note += f"; not checked, no schema: {', '.join(skipped)}"
    return note, findings


def monitoring(path, root):
    root = pathlib.Path(root)
    findings, rules, boards, replaced = [], 0, 0, {}
    manifests = load(path)
    given = yaml.safe_load(pathlib.Path(VALUES.format(root=root)).read_text())["prometheusRule"]
    for manifest in manifests:
        if manifest["kind"] == "ServiceMonitor":
            dropped = [each["regex"] for each in manifest["spec"]["endpoints"][0].get("relabelings", [])]
            if dropped != ["service"]:
                findings.append(f"{name(manifest)} has to drop the label service, which the metrics have, too")
            if manifest["spec"]["endpoints"][0].get("scheme", "http") != admin_scheme(manifests):
                findings.append(f"{name(manifest)} does not ask by the scheme of the admin port")
        elif manifest["kind"] == "PrometheusRule":
            file = root / "prometheus/rules" / (manifest["metadata"]["name"].rsplit("-", 1)[1] + ".yml")
            text = file.read_text().replace("docs/runbooks.md", given["runbooks"])
            for key, value in given["thresholds"].items():
                text, times = re.subn(rf"\S+( # threshold {key})\b", rf"{value}\1", text)
                replaced[key] = replaced.get(key, 0) + times
            if manifest["spec"] != yaml.safe_load(text):
                findings.append(f"{name(manifest)} is not {file.relative_to(root)}")
            findings += promtool(manifest)
            rules += 1
        elif manifest["kind"] == "ConfigMap" and "-dashboard-" in manifest["metadata"]["name"]:
            for key, text in manifest["data"].items():
                if json.loads(text) != json.loads((root / "grafana/dashboards" / key).read_text()):
                    findings.append(f"{name(manifest)}: {key} is not grafana/dashboards/{key}")
                boards += 1
    for kind, count, folder in (
        ("rules", rules, root.glob("prometheus/rules/*.yml")),
        ("dashboards", boards, root.glob("grafana/dashboards/*.json")),
    ):
        there = len(list(folder))
        if count != there or not there:
            findings.append(f"{count} files of {kind} are rendered; the repository has {there}")
    findings += [f"{key} is in {times} rules, not in one" for key, times in replaced.items() if times != 1]
    by = "promtool" if shutil.which("promtool") else "no promtool here"
    return f"{rules} files of rules ({by}), {boards} dashboards", findings


def admin_scheme(manifests):
    """Returns the scheme of the admin port, and checks that the probes ask by it, too."""
    container = next(each for each in manifests if each["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    scheme = "https" if any(each["name"] == "WATERMASTER_ADMIN__TLS_CERT" for each in container["env"]) else "http"
    probes = {container[each]["httpGet"].get("scheme", "HTTP") for each in ("livenessProbe", "readinessProbe")}
    assert probes == {scheme.upper()}, f"the probes ask by {probes}, the admin port speaks {scheme}"
    return scheme


VALUES = "{root}/deploy/helm/watermaster/examples/production.yaml"


def promtool(manifest):
    if not shutil.which("promtool"):
        return []
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump(manifest["spec"], file)
        file.flush()
        done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, timeout=60)
    return [f"{name(manifest)}: {done.stdout}{done.stderr}"] if done.returncode else []


def configuration_of(path):
    texts = [each["data"]["watermaster.toml"] for each in load(path) if "watermaster.toml" in each.get("data", {})]
    assert len(texts) == 1, f"{path} has {len(texts)} configurations"
    return texts[0]


def configuration(path, program):
    """Runs `watermaster check` with a temporary file for each secret, and with the variables that the chart sets."""
    sets = [each for each in load(path) if each["kind"] == "StatefulSet"]
    container = sets[0]["spec"]["template"]["spec"]["containers"][0]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        secret = folder / "secret"
        secret.write_text("only for this check")
        secret.chmod(0o440)
        authority = certificate(folder)
        text = configuration_of(path)
        for mount in container["volumeMounts"]:
            if mount["mountPath"].startswith("/run/secrets/"):
                text = replace_files(text, mount["mountPath"], secret, authority)
        if "/run/secrets/" in text:
            return "", [f"{path}: the configuration names a file under /run/secrets that is not mounted"]
        file = folder / "watermaster.toml"
        file.write_text(text)
        files = ["--config", file]
        for each in load(path):
            if "values.toml" in each.get("data", {}):
                (folder / "values.toml").write_text(each["data"]["values.toml"])
                files += ["--config", folder / "values.toml"]
        environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        environment["WATERMASTER_ADMIN__TOKEN_FILE"] = str(secret)
        if "WATERMASTER_ADMIN__TLS_CERT" in environment:
            environment |= {"WATERMASTER_ADMIN__TLS_CERT": str(authority), "WATERMASTER_ADMIN__TLS_KEY": str(folder / "ca.key")}
        environment["WATERMASTER_KAFKA__INSTANCE_ID"] = sets[0]["metadata"]["name"] + "-0"
        done = subprocess.run(
            [program, "check", *files], env=environment, capture_output=True, text=True, timeout=60
        )
    findings = [done.stdout + done.stderr] if done.returncode else []
    said = " ".join(done.stdout.split())
    return said if len(said) < 100 else f"{said[:97]}...", findings


def certificate(folder):
    """Makes the certificate of an authority: librdkafka reads it when the configuration is checked."""
    path = folder / "ca.crt"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=check"]
    files = ["-keyout", folder / "ca.key", "-out", path]
    subprocess.run(["openssl", "req", "-x509", *kind, *files], check=True, capture_output=True)
    return path


def replace_files(text, folder, secret, authority):
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if f'"{folder}/' in line:
            before, after = line.split(f'"{folder}/', 1)
            name, rest = after.split(chr(34), 1)
            lines[index] = f'{before}"{authority if name.endswith(".crt") else secret}"{rest}'
    return "\n".join(lines)


def strimzi(path, folder):
    config = tomllib.loads(configuration_of(path))
    group = config.get("kafka", {}).get("group_id", "watermaster")
    required, optional, topics, redrive, handover = set(), set(), set(), set(), set()
    for service in config["service"]:
        sources = {source["topic"] for source in service["source"]}
        outputs = {each[key] for each in [service, *service["source"]] for key in ("target", "dead_letter") if key in each}
        id = f"{group}.{service['name']}"
        controls = {service.get("control_topic", f"{id}.seats")} if service.get("scope", "group") == "group" else set()
        topics |= sources | outputs | controls
        required |= {("topic", each, "literal", verb) for each in controls for verb in ("Read", "Write", "Describe")}
        required |= {("topic", each, "literal", verb) for each in sources for verb in ("Read", "Describe")}
        required |= {("topic", each, "literal", verb) for each in outputs for verb in ("Write", "Describe")}
        required |= {("group", id, "literal", verb) for verb in ("Read", "Describe")}
        required |= {("transactionalId", f"{id}.", "prefix", verb) for verb in ("Write", "Describe")}
        optional |= {("topic", each, "literal", "DescribeConfigs") for each in sources | outputs | controls}
        letters = {each["dead_letter"] for each in [service, *service["source"]] if "dead_letter" in each}
        ledger = f"{service['dead_letter']}.ledger"
        optional |= {("topic", each, "literal", "Read") for each in letters | {ledger}}
        optional |= {("topic", ledger, "literal", "Describe"), ("group", f"{id}.redrive.default", "literal", "Read")}
        if "consumer_group" in service:
            optional.add(("group", service["consumer_group"], "literal", "Describe"))
        # Like docs/guarantees.md: dlq ls, redrive and close, and the originals of stubs.
        redrive |= {("topic", each, "literal", verb) for each in letters for verb in ("Read", "Describe")}
        redrive |= {("topic", each, "literal", verb) for each in sources for verb in ("Read", "Write", "Describe")}
        redrive |= {("topic", ledger, "literal", verb) for verb in ("Read", "Write", "Describe")}
        redrive |= {("topic", f"{each}.parked", "literal", verb) for each in letters for verb in ("Read", "Write", "Describe")}
        redrive |= {("group", f"{id}.redrive.", "prefix", "Read")}
        redrive |= {("transactionalId", f"{id}.redrive.", "prefix", verb) for verb in ("Write", "Describe")}
        topics |= {ledger} | {f"{each}.parked" for each in letters}
        handover |= {("topic", each, "literal", verb) for each in sources for verb in ("Read", "Describe")}
        groups = {id, service.get("consumer_group", id)}
        handover |= {("group", each, "literal", verb) for each in groups for verb in ("Read", "Describe")}
        handover |= {("topic", each, "literal", "Describe") for each in outputs - letters}
    optional |= {("cluster", None, None, "DescribeConfigs"), ("topic", "__transaction_state", "literal", "Describe")}

    manifests = load(f"{folder}/topics.yaml") + load(f"{folder}/user.yaml")
    made = {each["metadata"]["name"] for each in manifests if each["kind"] == "KafkaTopic"}
    users = [each for each in manifests if each["kind"] == "KafkaUser"]
    granted = {
        user["metadata"]["name"]: [
            (acl["resource"]["type"], acl["resource"].get("name"), acl["resource"].get("patternType"), verb)
            for acl in user["spec"]["authorization"]["acls"]
            for verb in acl["operations"]
        ]
        for user in users
    }
    findings = [f"topic {each} is needed but not created" for each in sorted(topics - made)]
    findings += [f"topic {each} is created but not needed" for each in sorted(made - topics)]
    users_of = {"watermaster": required | optional, "watermaster-redrive": redrive, "watermaster-handover": handover}
    for user, wanted in users_of.items():
        given = granted.get(user, [])
        findings += [f"{user}: {each} is needed but not granted" for each in sorted(wanted - set(given), key=str)]
        findings += [f"{user}: {each} is granted but not needed" for each in sorted(set(given) - wanted, key=str)]
        if len(set(given)) != len(given):
            findings.append(f"{user}: a permission is granted twice")
    return f"{len(made)} topics, {sum(map(len, granted.values()))} permissions of {len(users)} users ({len(required)} required)", findings


COMMANDS = {each.__name__: each for each in (schema, monitoring, configuration, strimzi)}

if __name__ == "__main__":
    note, findings = COMMANDS[sys.argv[1]](*sys.argv[2:])
    print("\n".join(findings) if findings else note)
    sys.exit(1 if findings else 0)
