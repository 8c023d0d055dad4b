"""What tools/chart made of the chart in deploy/helm, against the schemas of Kubernetes and against the program: every
manifest, with `once proxy --check` the settings inside it, and `once serve` with the arguments inside it. Then what neither of them sees: that names, ports, times and sizes in one
place fit those in another. And the chart's schema: it knows each setting of the program, and no other name or value.

kubernetes-validate has the schemas with it, so nothing is fetched and no cluster is needed. Helm is not needed either:
by SHA256SUMS, the manifests are what tools/chart made of the chart as it is.
Usage: kubernetes_test.py ONCE_PROGRAM
"""
import copy
import hashlib
import http.client
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = subprocess.run([ROOT / "tools/python-tools"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
if pathlib.Path(sys.prefix) != pathlib.Path(PYTHON).parent.parent:
    os.execv(PYTHON, [PYTHON, *sys.argv])

sys.path.insert(0, str(ROOT / "tests/clients"))
import certificates  # noqa: E402
import jsonschema  # noqa: E402  from the virtual environment, like yaml
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
MADE = ROOT / "tests/deploy/chart"
CHART = ROOT / "deploy/helm/once"
NEWEST = "1.37.0"
PAGE = (ROOT / "docs/kubernetes.md").read_text()
OLDEST = re.search(r"Kubernetes (1\.\d+) or later", PAGE)[1] + ".0"
USER = int(re.search(r"^USER = (\d+)", (ROOT / "tools/release").read_text(), re.M)[1])
MOUNTED = "/etc/once/proxy"
COMPONENT = "app.kubernetes.io/component"


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML's readers silently take the last one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, f"a key stands twice in {keys}", node.start_mark)
        return super().construct_mapping(node, deep)


def manifests(name):
    return list(yaml.load_all(FILES[name].read_text(), Strict))


def of_kind(documents, *kinds):
    """The one of these kinds, apart from the Service that Prometheus alone uses."""
    (found,) = [one for one in documents if one["kind"] in kinds and COMPONENT not in one["metadata"]["labels"]]
    return found


def check(settings):
    """Of `once proxy --check`, in a folder of its own: its exit code, and what it says as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "proxy.toml"
        file.write_text(settings)
        done = subprocess.run([PROGRAM, "proxy", "--check", "--no-files", "--json", "--config", file], stdout=subprocess.PIPE, text=True,
                              timeout=60, check=False, cwd=folder, env={"PATH": os.environ["PATH"]})
        return done.returncode, json.loads(done.stdout)


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)(Mi|MiB|Gi|GiB)", text).groups()
    return int(number) << (20 if unit.startswith("M") else 30)


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


SHIPPED = {path.name: path for path in (ROOT / "deploy/kubernetes").glob("*.yaml")}
FILES = SHIPPED | {path.name: path for path in MADE.glob("*.yaml")}
SERVERS = [name for name in FILES if name.startswith("server")]
PROXIES = [name for name in FILES if name not in SERVERS]

VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def merged(below, above):
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {name: merged(below.get(name), value) for name, value in above.items()}
    return above


def values(path):
    """As Helm merges them: the chart's own below those of the file."""
    return merged(yaml.load((CHART / "values.yaml").read_text(), Strict), yaml.load(path.read_text(), Strict))


def wrong(all_values):
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(all_values)]


def parts(name):
    """The documents of a file, its pods' template, the container of once and its settings, as the program reads them."""
    documents = manifests(name)
    pods = of_kind(documents, "Deployment", "StatefulSet")["spec"]["template"]
    (once,) = [one for one in containers(pods) if one["name"] == "once"]
    ((_, text),) = of_kind(documents, "ConfigMap")["data"].items()
    code, said = check(text)
    if code:
        raise AssertionError(f"{name}: {said}")
    return documents, pods, once, said["settings"]


def containers(pods):
    return pods["spec"].get("initContainers", []) + pods["spec"]["containers"]


def for_each_proxy(test):
    def every(self):
        for name in PROXIES:
            with self.subTest(file=name):
                test(self, *parts(name))
    return every


class Manifests(unittest.TestCase):
    maxDiff = None

    def test_files(self):
        self.assertEqual(set(SHIPPED), {"gateway.yaml", "sidecar.yaml"})
        self.assertEqual(set(FILES), {path.name.replace("-values", "") for path in VALUES})

    def test_schemas(self):
        for name in FILES:
            for document in manifests(name):
                if document["kind"] == "ServiceMonitor":  # Of Prometheus' operator. test_what_prometheus_finds() looks.
                    continue
                for version in (OLDEST, NEWEST):
                    with self.subTest(file=name, kind=document["kind"], version=version):
                        kubernetes_validate.validate(document, version, strict=True)

    @for_each_proxy
    def test_settings_are_read_as_written(self, documents, pods, once, settings):
        ((file, text),) = of_kind(documents, "ConfigMap")["data"].items()
        self.assertEqual(file, "proxy.toml")
        written = re.findall(r"^([\w-]+) = ", text.partition("[[route]]")[0], re.M)
        self.assertGreater(len(written), 8)
        self.assertTrue(set(written) <= {name for name, value in settings.items() if value is not None}, written)

    @for_each_proxy
    def test_pods_have_no_rights(self, documents, pods, once, settings):
        spec = pods["spec"]
        self.assertIs(spec["automountServiceAccountToken"], False)
        everybody = spec["securityContext"]
        self.assertIs(everybody["runAsNonRoot"], True)
        self.assertEqual([everybody[name] for name in ("runAsUser", "runAsGroup", "fsGroup")], [USER] * 3)
        self.assertEqual(everybody["seccompProfile"], {"type": "RuntimeDefault"})
        for container in containers(pods) if documents in [manifests(name) for name in SHIPPED] else [once]:
            self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                           "capabilities": {"drop": ["ALL"]}})
            self.assertIn("memory", container["resources"]["limits"])
            self.assertEqual(set(container["resources"]["requests"]), {"cpu", "memory"})

    @for_each_proxy
    def test_what_is_mounted_is_there(self, documents, pods, once, settings):
        self.assertEqual(once["args"], ["proxy", "--config", f"{MOUNTED}/proxy.toml"])
        volumes = {volume["name"]: volume for volume in pods["spec"]["volumes"]}
        claims = of_kind(documents, "Deployment", "StatefulSet")["spec"].get("volumeClaimTemplates", [])
        mounts = {mount["name"]: mount for mount in once["volumeMounts"]}
        self.assertEqual(set(mounts), set(volumes) | {claim["metadata"]["name"] for claim in claims})
        self.assertEqual(volumes["settings"]["configMap"]["name"], of_kind(documents, "ConfigMap")["metadata"]["name"])
        self.assertEqual(mounts["settings"]["mountPath"], MOUNTED)
        for name, mount in mounts.items():
            self.assertEqual(mount.get("readOnly", False), name != "records", mount)
            # once refuses a token that every user can read, and the group is fsGroup.
            self.assertEqual(volumes.get(name, {}).get("secret", {"defaultMode": 0o440})["defaultMode"], 0o440)
        self.assertEqual(pathlib.PurePath(settings["admin-token-file"]).parent.as_posix(), mounts["admin"]["mountPath"])

    def test_the_page_makes_their_secrets(self):
        for name in SHIPPED:
            with self.subTest(file=name):
                self.page_makes_secrets(*parts(name))

    def page_makes_secrets(self, _documents, pods, once, settings):
        wanted = {}
        for volume in pods["spec"]["volumes"]:
            if "secret" in volume:
                keys = [item["key"] for item in volume["secret"].get("items", [])]
                wanted.setdefault(volume["secret"]["secretName"], set()).update(keys)
            if volume["name"] == "admin":
                wanted[volume["secret"]["secretName"]].add(pathlib.PurePath(settings["admin-token-file"]).name)
        for variable in once.get("env", []):
            key = variable["valueFrom"]["secretKeyRef"]
            wanted[key["name"]].add(key["key"])
        made = {name: set(re.findall(r"--from-(?:literal|file)=([\w.]+)", rest))
                for name, rest in re.findall(r"^\$ kubectl create secret generic (\S+)(.*)$", PAGE, re.M)}
        self.assertEqual({name: made.get(name) for name in wanted}, wanted)

    @for_each_proxy
    def test_ports_and_probes(self, documents, pods, once, settings):
        ports = {port["name"]: port["containerPort"] for port in once["ports"]}
        self.assertEqual({name: f"0.0.0.0:{port}" for name, port in ports.items()},
                         {"http": settings["listen"], "admin": settings["admin"]})
        self.assertEqual(once["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "admin"})
        self.assertEqual(once["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "admin"})
        service = of_kind(documents, "Service")["spec"]
        self.assertEqual([port["targetPort"] for port in service["ports"]], ["http"])
        for selector in (service["selector"], of_kind(documents, "Deployment", "StatefulSet")["spec"]["selector"]["matchLabels"]):
            self.assertEqual(selector, pods["metadata"]["labels"])

    def test_what_prometheus_finds(self):
        documents, pods, once, settings = parts("gateway-dynamodb.yaml")
        monitor = of_kind(documents, "ServiceMonitor")
        self.assertEqual(monitor["metadata"]["labels"]["release"], "prometheus")
        (service,) = [one for one in documents if one["kind"] == "Service" and COMPONENT in one["metadata"]["labels"]]
        self.assertEqual(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
        # No other Service has these labels, and it leads to the proxy's pods, ready or not.
        self.assertFalse(service["metadata"]["labels"].items() <= of_kind(documents, "Service")["metadata"]["labels"].items())
        self.assertEqual(service["spec"]["selector"], pods["metadata"]["labels"])
        self.assertIs(service["spec"]["publishNotReadyAddresses"], True)
        (endpoint,) = monitor["spec"]["endpoints"]
        (port,) = service["spec"]["ports"]
        self.assertEqual((endpoint["port"], port["targetPort"], endpoint["path"]), (port["name"], "admin", "/metrics"))
        # The token that it sends is the one that once reads.
        sent = endpoint["authorization"]["credentials"]
        (mounted,) = [one["secret"] for one in pods["spec"]["volumes"] if one["name"] == "metrics"]
        self.assertEqual((sent["name"], sent["key"]), (mounted["secretName"], mounted["items"][0]["path"]))
        self.assertEqual(settings["metrics-token-file"], f"/etc/once/metrics/{sent['key']}")
        # Without the operator: the pods say it.
        _, pods, once, settings = parts("sidecar-postgresql.yaml")
        said = {name.partition("/")[2]: value for name, value in pods["metadata"]["annotations"].items()
                if name.startswith("prometheus.io/")}
        self.assertEqual(said, {"scrape": "true", "port": settings["admin"].partition(":")[2], "path": "/metrics"})
        for name in SHIPPED:
            self.assertNotIn("prometheus.io/scrape", parts(name)[1]["metadata"]["annotations"])

    def test_the_cron_job_sweeps_what_nobody_sweeps(self):
        documents, pods, once, settings = parts("sidecar-postgresql.yaml")
        job = of_kind(documents, "CronJob")["spec"]
        template = job["jobTemplate"]["spec"]["template"]
        (sweep,) = template["spec"]["containers"]
        self.assertEqual(sweep["args"], ["sweep", "--store", settings["store"]])
        self.assertEqual(settings["sweep-interval"], "off")
        for same in ("image", "imagePullPolicy", "env", "securityContext"):
            self.assertEqual(sweep[same], once[same])
        self.assertEqual(template["spec"]["securityContext"], pods["spec"]["securityContext"])
        self.assertEqual({one["mountPath"] for one in sweep["volumeMounts"]}, {"/etc/once/tls", "/etc/once/postgresql"})
        self.assertEqual({one["name"] for one in sweep["volumeMounts"]}, {one["name"] for one in template["spec"]["volumes"]})
        self.assertEqual((job["concurrencyPolicy"], template["spec"]["restartPolicy"]), ("Forbid", "Never"))
        # No Service and no policy takes its pods for the proxy's.
        self.assertFalse(pods["metadata"]["labels"].items() <= template["metadata"]["labels"].items())
        done = subprocess.run([PROGRAM, *sweep["args"][:1], "--help"], stdout=subprocess.PIPE, check=True, timeout=60)
        self.assertIn(b"--store TEXT", done.stdout)
        self.assertEqual({name for name in FILES if any(one["kind"] == "CronJob" for one in manifests(name))},
                         {"sidecar-postgresql.yaml"})

    @for_each_proxy
    def test_times_and_sizes_fit(self, documents, pods, once, settings):
        slept = sum(one.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
                    for one in containers(pods))
        self.assertGreater(slept, 0)
        self.assertGreater(pods["spec"]["terminationGracePeriodSeconds"], slept + seconds(settings["stop-within"]))
        self.assertLess(bytes_of(settings["buffer-limit"]) * 3 // 2, bytes_of(once["resources"]["limits"]["memory"]))
        self.assertLess(bytes_of(settings["buffer-limit-per-client"]), bytes_of(settings["buffer-limit"]))

    def test_the_sidecar_has_its_file_alone(self):
        documents, pods, once, settings = parts("sidecar.yaml")
        owner = of_kind(documents, "StatefulSet")["spec"]
        self.assertEqual(owner["replicas"], 1)
        (claim,) = owner["volumeClaimTemplates"]
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteOncePod"])
        mounts = {mount["name"]: mount["mountPath"] for mount in once["volumeMounts"]}
        self.assertEqual(settings["store"], f"sqlite:{mounts['records']}/once.db")
        self.assertIn(once, pods["spec"]["initContainers"])
        # Two failed checks make it unready: before the first probe asks.
        self.assertGreater(once["readinessProbe"].pop("initialDelaySeconds"), 2 * seconds(settings["health-interval"]))
        self.assertEqual(once["restartPolicy"], "Always")
        self.assertTrue(settings["upstream"][0].startswith("http://127.0.0.1:"), settings["upstream"])

    def test_the_gateway_has_a_store_for_all(self):
        documents, _, once, settings = parts("gateway.yaml")
        owner = of_kind(documents, "Deployment")["spec"]
        self.assertGreater(owner["replicas"], 1)
        self.assertTrue(settings["store"].startswith("postgresql://"), settings["store"])
        self.assertNotRegex(settings["store"], "//[^/@]*:[^/@]*@|password")
        self.assertIn("sslmode=verify-full", settings["store"])
        self.assertEqual([one["name"] for one in once["env"]], ["PGPASSWORD"])
        # The Service behind it: the same port, and closed to everybody else.
        policy = of_kind(documents, "NetworkPolicy")["spec"]
        service, port = re.fullmatch(r"http://([\w-]+):(\d+)", settings["upstream"][0]).groups()
        self.assertEqual(policy["podSelector"]["matchLabels"], {"app.kubernetes.io/name": service})
        self.assertEqual(policy["ingress"][0]["ports"], [{"port": int(port)}])
        self.assertEqual(policy["ingress"][0]["from"], [{"podSelector": owner["selector"]}])
        self.assertLess(of_kind(documents, "PodDisruptionBudget")["spec"]["minAvailable"], owner["replicas"])


TOKEN = "the-token-of-a-client-in-this-test"


class Servers(unittest.TestCase):
    """The manifests of `once serve`."""

    @staticmethod
    def once(name):
        documents = manifests(name)
        pods = of_kind(documents, "Deployment", "StatefulSet")["spec"]["template"]
        (once,) = containers(pods)
        return documents, pods, once

    def test_they_are_the_proxies_but_for_what_they_run(self):
        """Compared with a proxy on the same store, whose fields have tests above."""
        for server, proxy in (("server.yaml", "gateway.yaml"), ("server-sqlite.yaml", "gateway-sqlite.yaml")):
            with self.subTest(server=server):
                documents, pods, once = self.once(server)
                others, their_pods, theirs, _ = parts(proxy)
                for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "topologySpreadConstraints"):
                    ours, other = (json.dumps(one["spec"].get(field)).replace(release, "X")
                                   for one, release in ((pods, "once"), (their_pods, "pay-gateway")))
                    self.assertEqual(ours, other, field)
                for field in ("securityContext", "lifecycle", "readinessProbe", "livenessProbe"):
                    self.assertEqual(once[field], theirs[field], field)
                self.assertIn("memory", once["resources"]["limits"])
                owner, other = (of_kind(those, "Deployment", "StatefulSet")["spec"] for those in (documents, others))
                self.assertEqual((owner["replicas"], owner.get("strategy")), (other["replicas"], other.get("strategy")))
                self.assertGreater(pods["spec"]["terminationGracePeriodSeconds"], once["lifecycle"]["preStop"]["sleep"]["seconds"])
                self.assertNotIn("ConfigMap", [one["kind"] for one in documents])

    def test_what_is_mounted_is_there(self):
        for name in SERVERS:
            with self.subTest(file=name):
                documents, pods, once = self.once(name)
                secrets = {volume["name"]: volume["secret"] for volume in pods["spec"]["volumes"]}
                mounts = {mount["mountPath"]: mount for mount in once["volumeMounts"]}
                for path in re.findall(r"/etc/once/\S+?(?=[\s\"&,}\]]|$)", json.dumps([once["args"], once["env"]])):
                    mount = mounts[str(pathlib.PurePath(path).parent)]
                    self.assertIs(mount["readOnly"], True)
                    secret = secrets[mount["name"]]
                    self.assertEqual(secret["defaultMode"], 0o440)
                    key = pathlib.PurePath(path).name
                    self.assertIn(key, [item["key"] for item in secret["items"]] if "items" in secret else ["tls.crt", "tls.key"])
                records = "/var/lib/once" in mounts
                self.assertEqual(records, once["env"][0]["value"].startswith("sqlite:/var/lib/once/"))
                self.assertEqual(records, of_kind(documents, "Deployment", "StatefulSet")["kind"] == "StatefulSet")
                service = of_kind(documents, "Service")["spec"]
                self.assertEqual(service["selector"], pods["metadata"]["labels"])
                self.assertEqual(service["sessionAffinity"], "ClientIP")
                self.assertEqual([port["targetPort"] for port in service["ports"]], ["claims"])
                self.assertEqual({port["name"]: f"0.0.0.0:{port['containerPort']}" for port in once["ports"]},
                                 {"claims": self.option(once, "listen"), "admin": self.option(once, "admin")})

    @staticmethod
    def option(once, name):
        (value,) = [one.partition("=")[2] for one in once["args"] if one.startswith(f"--{name}=")]
        return value

    def test_the_program_takes_their_arguments(self):
        """It is started with them, in a folder that stands for the pod: it serves those who may, and ends when it is told."""
        for name in SERVERS:
            with self.subTest(file=name), tempfile.TemporaryDirectory() as folder:
                _, _, once = self.once(name)
                root = pathlib.Path(folder)
                for path in re.findall(r"/etc/once/[\w./-]+", " ".join(once["args"])):
                    (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                    (root / path[1:]).write_text(f"{TOKEN}\n" if "serve-clients" in path else f"{pathlib.PurePath(path).parent}-{'x' * 32}\n")
                    (root / path[1:]).chmod(0o640)
                authority = certificates.Authority(root)
                pair = authority.sign("server")
                for file, end in zip(pair, ("crt", "key")):
                    (root / f"etc/once/serve-tls/tls.{end}").write_bytes(file.read_bytes())
                of_clients = root / "etc/once/serve-clients/ca.crt"
                if of_clients.exists():
                    of_clients.write_bytes(authority.file.read_bytes())
                words = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", word).replace("/etc/once/", f"{root}/etc/once/") for word in once["args"]]
                process = subprocess.Popen([PROGRAM, *words], stderr=subprocess.PIPE, text=True, cwd=folder,
                                           env={"PATH": os.environ["PATH"], "ONCE_STORE": f"sqlite:{root}/once.db"})
                try:
                    said = ""
                    while "listening on" not in said:
                        line = process.stderr.readline()
                        self.assertTrue(line, said)
                        said += line
                    self.assert_serves(int(re.search(r"listening on 127.0.0.1 port (\d+)", said)[1]), authority.file,
                                       pair if of_clients.exists() else None)
                finally:
                    process.terminate()
                    rest = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 0, said + rest)

    def assert_serves(self, port, authority, certificate):
        """Who has this certificate, or without one who has the token."""
        trust = ssl.create_default_context(cafile=authority)
        if certificate:
            trust.load_cert_chain(*certificate)
        for token in ([None] if certificate else [TOKEN, "x" * len(TOKEN)]):
            client = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
            client.request("GET", "/v1/claims?key=a", headers={"Authorization": f"Bearer {token}"} if token else {})
            self.assertEqual(client.getresponse().status, 404 if token in (None, TOKEN) else 401)
            client.close()


class Chart(unittest.TestCase):
    """What Helm is not needed for. tools/chart has the rest."""

    def test_manifests_are_not_stale(self):
        listed = {name: digest for digest, name in
                  (line.split("  ") for line in (MADE / "SHA256SUMS").read_text().splitlines())}
        there = [*(path for path in CHART.rglob("*") if path.is_file()), *FILES.values()]
        self.assertEqual(listed, {path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in there},
                         "run tools/chart --write")

    def test_versions(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        version = re.search(r"^project\(once VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))
        self.assertEqual(chart["kubeVersion"], f">={OLDEST}-0")

    def test_the_schema_knows_each_setting(self):
        code, said = check('listen = "0.0.0.0:8080"\nupstream = "http://pay:9000"\nno-principal = true\nstore = "dynamodb:t"\n'
                           '[[route]]\npath = "/x"\n')
        self.assertEqual(code, 0)
        known = SCHEMA["properties"]["settings"]["properties"]
        made_by_templates = {"listen", "upstream", "store", "admin", "admin-token-file"}
        # Probes speak no TLS here, and nobody connects by a Unix socket.
        not_offered = {"unshared-store", "admin-tls-cert", "admin-tls-key", "accept-key-change", "listen-mode"}
        self.assertEqual(set(known), set(said["settings"]) - made_by_templates - not_offered | {"route"})
        self.assertEqual(set(known["route"]["items"]["properties"]), set(said["routes"][0]))
        for name in set(known) & set(said["settings"]):  # The program's own defaults are good values.
            value = said["settings"][name]
            value = int(value) if isinstance(value, str) and value.isdigit() else value
            if value is not None:
                with self.subTest(setting=name, value=value):
                    jsonschema.validate(value, {**known[name], "definitions": SCHEMA["definitions"]})

    def test_the_schema_knows_each_option_of_a_server(self):
        told = subprocess.run([PROGRAM, "serve", "--help"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
        has = set(re.findall(r"^  (?:-h,)?--([\w-]+)", told, re.M))
        made_by_templates = {"store", "listen", "tls-cert", "tls-key", "token-file", "client-ca", "admin", "admin-token-file"}
        # Of a server that is shared by a Unix socket, or started on demand. --tenants follows from the secret.
        not_offered = {"help", "unshared-store", "listen-mode", "tenants", "on-demand", "print-socket", "idle-timeout"}
        self.assertEqual(set(SCHEMA["properties"]["serve"]["properties"]["options"]["properties"]), has - made_by_templates - not_offered)

    def test_the_schema_is_closed(self):
        def closed(node, path):
            if isinstance(node, dict):
                if "properties" in node and node.get("type") == "object":
                    self.assertIs(node["additionalProperties"], False, path)
                for name, below in node.items():
                    closed(below, f"{path}/{name}")
            elif isinstance(node, list):
                for number, below in enumerate(node):
                    closed(below, f"{path}/{number}")

        jsonschema.Draft7Validator.check_schema(SCHEMA)
        closed(SCHEMA, "")

    def test_good_values(self):
        self.assertGreater(len(VALUES), 4)
        for path in VALUES:
            with self.subTest(values=path.name):
                self.assertEqual(wrong(values(path)), [])
        self.assertNotEqual(wrong(yaml.load((CHART / "values.yaml").read_text(), Strict)), [])

    def test_a_misspelt_name_or_another_kind_of_value(self):
        """Of each value that a chart's examples have, one at a time."""
        open_to_all = {"service/annotations", "podAnnotations", "metrics/serviceMonitor/labels", "nodeSelector", "tolerations", "affinity", "app/lifecycle",
                       "app/readinessProbe", "networkPolicy/podLabels"}  # Their names are the user's, or Kubernetes'.
        tried = 0

        def descend(whole, node, path):
            nonlocal tried
            for name in list(node) if isinstance(node, dict) else range(len(node)):
                here = f"{path}/{name}".strip("/") if isinstance(node, dict) else path
                value = node[name]
                if isinstance(node, dict):
                    del node[name]
                    for other, another in ((name + "s", value), (name, {"a": 1} if not isinstance(value, dict) else "a")):
                        node[other] = another
                        with self.subTest(values=path, name=here, other=other):
                            self.assertNotEqual(wrong(whole), [], f"{here} as {other}: {another} is taken")
                        del node[other]
                        tried += 1
                    node[name] = value
                if isinstance(value, (dict, list)) and here not in open_to_all:
                    descend(whole, value, here)

        for path in VALUES:
            whole = values(path)
            descend(whole, whole, "")
        self.assertGreater(tried, 300)

    def test_values_that_do_not_fit(self):
        gateway, sidecar, server = (CHART / f"ci/{form}-values.yaml" for form in ("gateway", "sidecar", "server"))

        def serve(**of_serve):
            return lambda all_values: all_values["serve"].update(of_serve)

        def without(*names):
            return lambda all_values: [all_values["settings"].pop(name) for name in names]

        def setting(**all_settings):
            return lambda all_values: all_values["settings"].update({name.replace("_", "-"): value for name, value in all_settings.items()})

        def value(**all_of_them):
            return lambda all_values: all_values.update(all_of_them)

        for number, (file, change) in enumerate((
            (gateway, without("principal-header")),  # Nothing says who a client is.
            (gateway, setting(principal_header=[])),
            (gateway, lambda all_values: (without("principal-header")(all_values), setting(no_principal=False)(all_values))),
            (gateway, setting(stop_within="30")),
            (gateway, setting(lease="30 s")),
            (gateway, setting(retention=24)),
            (gateway, setting(on_ambiguous="take-over")),
            (gateway, setting(on_store_down="run_unprotected")),
            (gateway, setting(optional_key="false")),
            (gateway, setting(route=[{"path": "charges"}])),
            (gateway, setting(route=[{"path": "/charges", "optional_key": True}])),
            (gateway, value(store="postgresql://once:secret@postgresql/once")),  # Not in a ConfigMap.
            (gateway, value(store="postgresql://once@postgresql/once?password=secret")),
            (gateway, value(store="sqlite:/tmp/once.db")),  # Not on the volume.
            (gateway, value(store="sqlite:/var/lib/once/once.db", replicas=2)),  # Two pods, two files.
            (gateway, value(store="memory:")),
            (gateway, value(sweep={"enabled": True, "schedule": "60s"})),
            (gateway, value(metrics={"scrapeAnnotations": "yes", "serviceMonitor": {"enabled": False}})),
            (gateway, value(networkPolicy={})),  # Open by silence.
            (gateway, value(networkPolicy={"enabled": True})),
            (gateway, value(upstream="pay:9000")),
            (gateway, value(form="Gateway")),
            (sidecar, value(replicas=2)),
            (sidecar, value(upstream="http://pay:9000")),
            (sidecar, value(image={"repository": "once", "tag": 0.1})),
            (gateway, value(serve=values(server)["serve"])),
            (server, setting(principal_header="X")),  # Of a proxy: nothing would read it.
            (server, setting(threads=4)),
            (server, value(upstream="http://pay:9000")),
            (server, value(networkPolicy={"enabled": False})),
            (server, lambda all_values: all_values["serve"].pop("tokenSecret")),  # Open to everybody.
            (server, lambda all_values: all_values["serve"].pop("tlsSecret")),
            (server, serve(clientCaSecret={"name": "ca", "key": "ca.crt"})),
            (server, serve(options={"max-claims": 0})),
            (server, serve(options={"tenants": "none"})),
            (server, value(store="sqlite:/var/lib/once/once.db", replicas=2)),
        )):
            all_values = values(file)
            change(all_values)
            with self.subTest(number=number):
                self.assertNotEqual(wrong(all_values), [])


class Mistakes(unittest.TestCase):
    """What the two checks are for: a mistake in a good manifest is found, and named."""

    def test_a_misspelt_field(self):
        def in_pods(change):
            return lambda document: change(document["spec"]["template"]["spec"])

        for what, change in {
            "readinesProbe": in_pods(lambda pods: pods["initContainers"][0].update(readinesProbe={})),
            "runAsNonroot": in_pods(lambda pods: pods["securityContext"].update(runAsNonroot=True)),
            "readOnlyRootFileSystem": in_pods(lambda pods: pods["containers"][0]["securityContext"].update(readOnlyRootFileSystem=True)),
            "terminationGracePeriod": in_pods(lambda pods: pods.update(terminationGracePeriod=60)),
            "replica": lambda document: document["spec"].update(replica=1),
            "sixty": in_pods(lambda pods: pods.update(terminationGracePeriodSeconds="sixty")),
        }.items():
            with self.subTest(wrong=what):
                document = copy.deepcopy(of_kind(manifests("sidecar.yaml"), "StatefulSet"))
                change(document)
                with self.assertRaisesRegex(kubernetes_validate.ValidationError, what):
                    kubernetes_validate.validate(document, NEWEST, strict=True)

    def test_a_key_that_stands_twice(self):
        with self.assertRaisesRegex(yaml.YAMLError, "twice"):
            yaml.load("spec: {replicas: 1, replicas: 2}", Strict)

    def test_a_wrong_setting(self):
        for name in SHIPPED:
            text = of_kind(manifests(name), "ConfigMap")["data"]["proxy.toml"]
            for right, wrong, said in (("principal-header", "principal_header", "did you mean 'principal-header'"),
                                       ('0s"', '0"', "stop-within is '.*'; write a whole number and a unit"),
                                       ("admin-token-file", "metrics-token-file", "admin-token-file"),
                                       ("http://", "ftp://", "upstream")):
                with self.subTest(file=name, wrong=wrong):
                    self.assertIn(right, text)
                    code, answer = check(text.replace(right, wrong))
                    self.assertEqual((code, answer["valid"]), (64, False))
                    self.assertRegex(" ".join(one["message"] for one in answer["complaints"]), said)


if __name__ == "__main__":
    unittest.main()
