"""The shipped rules and the dashboard of Grafana: each expression has an answer of a real Prometheus
that scrapes a real daemon through the bridge. docs/telemetry.md."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import fabricshm
from programs import BUILD, Daemon, die_with_parent, skip, wait_for

PACKAGING = Path(os.environ["FABRIC_SOURCE"]) / "packaging"
RULES = ("fabricd-records.yml", "fabricd-alerts.yml")

for program in ("prometheus", "promtool"):
    if shutil.which(program) is None:
        skip(f"{program} is not installed (scripts/setup)")


def expressions_of_rules(name):
    """(name, expression) of the rules, without a YAML parser: each is one line, or folded (>-)."""
    found, rule, folded = [], None, None
    for line in (PACKAGING / "prometheus" / name).read_text().splitlines():
        begun = re.match(r"\s+- (?:alert|record): (.*)", line)
        if folded is not None and line.startswith("          "):
            folded.append(line.strip())
            found[-1] = (rule, " ".join(folded))
            continue
        folded = None
        if begun:
            rule = begun[1]
        given = re.match(r"        expr: (.*)", line)
        if given and given[1] == ">-":
            folded = []
            found.append((rule, ""))
        elif given:
            found.append((rule, given[1]))
    return found


def expressions_of_panels():
    panels = json.loads((PACKAGING / "grafana/fabricd.json").read_text())["panels"]
    return [(panel["title"], target["expr"].replace("$instance", ".*"))
            for panel in panels for target in panel["targets"]]


class Prometheus:
    """One that scrapes the bridge each second, in a folder of its own."""

    def __init__(self, target):
        self.folder = tempfile.mkdtemp(prefix="fabric-web-")
        for name in RULES:
            shutil.copy(PACKAGING / "prometheus" / name, self.folder)
        shipped = (PACKAGING / "prometheus/scrape.yml").read_text()
        config = shipped.replace("127.0.0.1:9464", target).replace("scrape_interval: 15s", "scrape_interval: 1s")
        assert config.count(target) >= 1 and "scrape_interval: 1s" in config
        config += "global:\n  evaluation_interval: 1s\n"
        (Path(self.folder) / "prometheus.yml").write_text(config)
        self.log = open(f"{self.folder}/log", "wb")
        self.process = None
        self.address = None

    def start(self):
        # Its port can't be left to the kernel: one that is taken meanwhile is tried again.
        for attempt in range(20):
            port = 20000 + (os.getpid() * 7 + attempt * 131) % 10000
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)
            self.address = f"http://127.0.0.1:{port}"

            def ready():
                if self.process.poll() is not None:
                    return "ended"
                try:
                    with urllib.request.urlopen(self.address + "/-/ready", timeout=5) as answer:
                        return answer.status == 200
                except (urllib.error.URLError, OSError):
                    return False
            if wait_for(ready, "prometheus is ready") is True:
                return
        raise AssertionError(Path(f"{self.folder}/log").read_text()[-2000:])

    def ask(self, expression):
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.address}/api/v1/query?{query}", timeout=30) as answer:
            return json.load(answer)["data"]["result"]

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class PrometheusTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--pool-capacity", "256MiB", "--arena-default-bytes", "4MiB", "--cluster-hosts", "here",
                            "--cluster-host-name", "here", "--telemetry-metrics-socket", "@/metrics.sock")
        cls.daemon.start()
        cls.bridge = subprocess.Popen(
            [BUILD / "fabricd/bridge/fabric-metrics-bridge", "--socket", f"{cls.daemon.folder}/metrics.sock",
             "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=die_with_parent)
        said = cls.bridge.stderr.readline().decode()
        cls.prometheus = Prometheus(re.search(r"http://(127\.0\.0\.1:[0-9]+)/metrics", said)[1])
        cls.prometheus.start()

    @classmethod
    def tearDownClass(cls):
        cls.prometheus.stop()
        cls.bridge.send_signal(signal.SIGTERM)
        assert cls.bridge.wait(60) == 0
        cls.bridge.stderr.close()
        cls.daemon.__exit__()

    def test_promtool_finds_nothing_wrong(self):
        folder = PACKAGING / "prometheus"
        for words in (["check", "rules", *RULES], ["check", "config", "scrape.yml"], ["test", "rules", "tests.yml"]):
            done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_a_test(self):
        tests = (PACKAGING / "prometheus/tests.yml").read_text()
        for alert, _ in expressions_of_rules("fabricd-alerts.yml"):
            self.assertIn(alert, tests)

    def test_every_expression_has_an_answer(self):
        wanted = expressions_of_panels() + expressions_of_rules("fabricd-records.yml")
        # An alert that does not fire has none: what it compares is asked for.
        alerts = expressions_of_rules("fabricd-alerts.yml")
        self.assertEqual(len(alerts), (PACKAGING / "prometheus/fabricd-alerts.yml").read_text().count("- alert:"))
        wanted += [(name, re.sub(r" (==|>|<) [0-9.]+$", "", expression)) for name, expression in alerts]
        with fabricshm.Session(self.daemon.socket, label="job") as session:
            arena = session.arena("job", bytes=4 << 20)
            group = arena.join("workers", 0, 1)
            left = dict(wanted)
            end = time.monotonic() + 120
            while left:
                self.assertLess(time.monotonic(), end, f"no answer to {left}")
                group.barrier()
                session.step(samples=32, loss=1.0, group=group)
                # Refusals: more than the pool.
                with self.assertRaises(fabricshm.FabricError):
                    session.arena("large", bytes=1 << 40)
                left = {name: expression for name, expression in left.items() if not self.prometheus.ask(expression)}

    def test_the_dashboard_asks_for_nothing_twice_and_names_its_units(self):
        dashboard = json.loads((PACKAGING / "grafana/fabricd.json").read_text())
        titles = [panel["title"] for panel in dashboard["panels"]]
        self.assertEqual(len(titles), len(set(titles)))
        for panel in dashboard["panels"]:
            self.assertIn("unit", panel["fieldConfig"]["defaults"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
