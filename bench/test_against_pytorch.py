#!/usr/bin/env python3
"""Tests of the comparison itself, with stand-ins for our trainer and for the peer: seconds, no PyTorch, no build.

    python3 bench/test_against_pytorch.py
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

BENCH = os.path.dirname(os.path.abspath(__file__))

# Takes 10 ms a step on one rank and 11 ms on two, after a first step that is far slower, and notes how it was called.
OURS = """#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print("ours", *words, file=log)
option = lambda name: words[words.index(name) + 1]
with open(option("--metrics"), "w") as file:
    for step in range(1, int(option("--steps")) + 1):
        time = 1000.0 if step == 1 else 10.0 * (1 if option("-n") == "1" else 1.1)
        line = dict(step=step, loss=5.5, tokens_per_second=2048 / time * 1e3)
        print(json.dumps({{**line, "step_ms": time}} if {with_step_ms} else line), file=file)
"""
PEER = """#!/usr/bin/env python3
import json, os, sys
with open({log!r}, "a") as log:
    print("peer", *sys.argv[1:], file=log)
    print("environment", json.dumps(dict(os.environ)), file=log)
print(json.dumps(dict(torch="9.9", step_ms=[20.0, 21.0, 19.0])))
"""


class AgainstPyTorch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.log = self.path("log")
        self.write("peer", PEER.format(log=self.log))
        self.write("launch", OURS.format(log=self.log, with_step_ms=True))

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)

    def compare(self, *options, **variables):
        command = ["bash", os.path.join(BENCH, "against_pytorch.sh"), "--launch", self.path("launch"), "--patience", "0",
                   "--rounds", "2", "--steps", "3", "--warmup", "1", "--environment", "plain",
                   "--output", self.path("results/out"), *options]
        environment = {**os.environ, "PEER_PYTHON": self.path("peer"), **variables}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def calls(self):
        with open(self.log) as file:
            return [line.split() for line in file if not line.startswith("environment")]

    def results(self):
        with open(self.path("results/out.json")) as file:
            return json.load(file)

    def test_takes_turns_and_compares_medians_without_the_warmup(self):
        done = self.compare("--only", "small 256 bfloat16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call[0] for call in self.calls()], ["ours", "peer", "ours", "peer"])
        case, = self.results()["cases"]
        self.assertAlmostEqual(case["ratio"], 2.0)
        self.assertAlmostEqual(case["ratio_of_minima"], 1.9)
        self.assertTrue(case["reached"])
        self.assertIn("| small 256 bfloat16 | ours | 10.0 | 10.0 | 204800 |", done.stdout)

    def test_says_when_the_target_is_missed(self):
        done = self.compare("--only", "tiny 256 float32")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2.5 missed", done.stdout)

    def test_two_ranks_share_threads_and_batch(self):
        done = self.compare("--only", "ranks")
        self.assertEqual(done.returncode, 0, done.stderr)
        two, one, gloo = [" ".join(call) for call in self.calls()[:3]]
        self.assertIn("-n 2 step01_dp", two)
        self.assertIn("--threads 1 ", two)
        self.assertIn("--micro-batch-size 4", two)
        self.assertIn("--threads 2 ", one)
        self.assertIn("--micro-batch-size 8", one)
        self.assertIn("--ranks 2 --threads 1", gloo)
        self.assertAlmostEqual(self.results()["cases"][0]["ratio"], 10 / 11)

    def test_tokens_per_second_serve_where_step_ms_is_missing(self):
        self.write("launch", OURS.format(log=self.log, with_step_ms=False))
        done = self.compare("--only", "small 256 bfloat16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(self.results()["cases"][0]["ratio"], 2.0)

    def test_peer_is_shielded_from_settings_that_slow_it(self):
        self.compare("--only", "tiny 256 float32", OPENBLAS_CORETYPE="Haswell", OMP_NUM_THREADS="1", MKL_DEBUG_CPU_TYPE="5")
        with open(self.log) as file:
            seen = next(json.loads(line.split(" ", 1)[1]) for line in file if line.startswith("environment"))
        self.assertFalse({"OPENBLAS_CORETYPE", "OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE"} & set(seen))

    def refused(self, message, *options, **variables):
        done = self.compare(*options, **variables)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(message, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_errors_name_what_is_missing(self):
        self.refused("bench/peers/setup.sh", PEER_PYTHON=self.path("no_python"))
        self.refused("build the project first", "--launch", self.path("no_launch"))
        self.refused("no such case", "--only", "gigantic")
        self.refused("must be even", "--threads", "3")
        self.write("launch", "#!/bin/sh\necho 'unknown option --thread' >&2; exit 2\n")
        self.refused("unknown option --thread", "--only", "tiny 256 float32")
        self.write("launch", "#!/bin/sh\nexit 0\n")
        self.refused("has no steps after the warm-up", "--only", "tiny 256 float32")


if __name__ == "__main__":
    unittest.main()
