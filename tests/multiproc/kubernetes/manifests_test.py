#!/usr/bin/python3
"""The examples in packaging/kubernetes/ are YAML, and name the resource and the options of the program."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    print("python3-yaml is not installed (scripts/setup)")
    sys.exit(77)

FOLDER = Path(__file__).resolve().parents[3] / "packaging/kubernetes"
KINDS = {"daemonset.yaml": ["DaemonSet"], "pod.yaml": ["Pod"], "jobset.yaml": ["JobSet"],
         "kueue.yaml": ["ResourceFlavor", "ClusterQueue", "LocalQueue"]}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def values_of(node, key):
    """All values of `key`, at any depth."""
    if isinstance(node, dict):
        found = [node[key]] if key in node else []
        return found + [value for child in node.values() for value in values_of(child, key)]
    if isinstance(node, list):
        return [value for child in node for value in values_of(child, key)]
    return []


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.help = subprocess.run([os.environ["DEVICE_PLUGIN"], "--help"], capture_output=True, text=True,
                                  check=True).stdout
        cls.resource = re.search(r"as the resource (\S+)\.\n", cls.help)[1]

    def test_each_file_has_the_objects_that_its_name_says(self):
        self.assertEqual(sorted(path.name for path in FOLDER.iterdir()), sorted(KINDS))
        for name, kinds in KINDS.items():
            objects = documents(name)
            self.assertEqual([one["kind"] for one in objects], kinds)
            for one in objects:
                self.assertTrue(one["apiVersion"] and one["metadata"]["name"])

    def test_pods_ask_for_the_resource_of_the_program_in_whole_gib(self):
        for name in ("pod.yaml", "jobset.yaml"):
            limits = values_of(documents(name), "limits")
            self.assertEqual([type(limit[self.resource]) for limit in limits], [int])

    def test_no_other_name_of_the_domain_is_a_resource(self):
        domain = self.resource.split("/")[0]
        for name in KINDS:
            names = set(re.findall(rf"{re.escape(domain)}/[\w-]+", (FOLDER / name).read_text()))
            self.assertLessEqual(names, {self.resource, f"{domain}/fabricd"})

    def test_the_queue_counts_the_resource(self):
        group = documents("kueue.yaml")[1]["spec"]["resourceGroups"][0]
        self.assertIn(self.resource, group["coveredResources"])
        self.assertEqual([entry["name"] for entry in group["flavors"][0]["resources"]], group["coveredResources"])
        self.assertEqual(group["flavors"][0]["name"], documents("kueue.yaml")[0]["metadata"]["name"])

    def test_the_label_of_nodes_and_the_queue_are_the_same_everywhere(self):
        node = documents("daemonset.yaml")[0]["spec"]["template"]["spec"]["nodeSelector"]
        self.assertEqual(documents("kueue.yaml")[0]["spec"]["nodeLabels"], node)
        queue = documents("jobset.yaml")[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        self.assertEqual(documents("kueue.yaml")[2]["metadata"]["name"], queue)

    def test_the_command_of_the_daemonset_is_one_that_the_program_takes(self):
        container = documents("daemonset.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
        words = container["command"]
        self.assertEqual(Path(words[0]).name, Path(os.environ["DEVICE_PLUGIN"]).name)
        # What is behind --help is not looked at.
        done = subprocess.run([os.environ["DEVICE_PLUGIN"], *words[1:], "--help"], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        folders = {mount["mountPath"] for mount in container["volumeMounts"]}
        for option in words[1:]:
            value = option.split("=")[1]
            if value.startswith("/"):
                self.assertTrue(any(value.startswith(folder + "/") for folder in folders), option)
        self.assertIn("/var/lib/kubelet/device-plugins", folders)
        self.assertIn("default /var/lib/kubelet/device-plugins", self.help)

    def test_the_address_of_the_first_pod_is_the_one_that_jobset_makes(self):
        jobset = documents("jobset.yaml")[0]
        job = jobset["spec"]["replicatedJobs"][0]
        name = jobset["metadata"]["name"]
        command = values_of(job, "command")[0][-1]
        self.assertIn(f"--master-addr {name}-{job['name']}-0-0.{name} ", command)
        self.assertIn(f"--nnodes {job['template']['spec']['parallelism']} ", command)


if __name__ == "__main__":
    unittest.main()
