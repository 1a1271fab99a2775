#!/usr/bin/env python3
"""Tests of scripts/gpu_check.sh and its report, with stand-ins for nvidia-smi and for our programs: seconds, no GPU, no build.

    python3 bench/test_gpu_check.py
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(BENCH)
sys.path.insert(0, BENCH)
import gpu_report

NVIDIA_SMI = """#!/bin/bash
case $1 in
  --query-gpu=name) printf '%s\\n' {names} ;;
  --query-gpu=compute_cap) printf '%s\\n' {capabilities} ;;
  --query-gpu=memory.total) echo 81559 ;;
  --query-gpu=driver_version) echo 580.1 ;;
  *) echo a table ;;
esac
"""
TESTS = """#!/bin/bash
case $* in
  *--gtest_list_tests*) printf 'Ops/NormTest.\\n  agrees/float32_cuda\\n' ;;
  *) sleep {delay}; echo '[  PASSED  ] 1 test.'; exit {code} ;;
esac
"""
BENCH_CUDA = """#!/usr/bin/env python3
import json, sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
rows = {{
    "limits": [dict(limit="copy", gb_per_s=3000.0), dict(limit="matrix product bfloat16", tflops=700.0)],
    "memory": [dict(operation="add", dtype="bfloat16", shape="8 x 8", us=1.0, gb_per_s=2700.0, share_of_copy=0.9),
               dict(operation="adamw", dtype="bfloat16", shape="64", us=1.0, gb_per_s=2250.0, share_of_copy=0.75)],
    "gemm": [{{"layer": "qkv", "pass": "forward", "dtype": "bfloat16", "us": 1.0, "tflops": 690.0}}],
    "attention": [{{"head_size": 64, "length": 2048, "pass": "forward", "us": 1.0, "tflops": 330.0}}]}}
with open(option("--json"), "w") as file:
    json.dump(dict(device="a GPU", sections={{option("--section"): dict(rows=rows[option("--section")])}}), file)
if option("--section") == {broken!r}:
    sys.exit("an illegal memory access was encountered")
"""
TRAINER = """#!/usr/bin/env python3
import json, sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
if int(option("--micro-batch-size") if "--micro-batch-size" in sys.argv else 1) > {largest}:
    sys.exit("out of memory")
with open(option("--metrics"), "w") as file:
    for step in range(1, int(option("--steps")) + 1):
        loss = 5.0 / step + ({drift} if "4" in sys.argv[3:5] else 0)
        print(json.dumps(dict(step=step, loss=loss, step_ms=100.0, tokens_per_second=60000.0)), file=file)
print("step 20 | loss 5 | tokens/s 60K")
"""
PEER = """#!/usr/bin/env python3
import json, sys
if "-" in sys.argv:
    sys.exit()
option = lambda name: sys.argv[sys.argv.index(name) + 1]
rows = dict(limits=[dict(limit="copy", gb_per_s=2900.0)],
            gemm=[{"layer": "qkv", "pass": "forward", "dtype": "bfloat16", "tflops": 700.0}],
            attention=[{"head_size": 64, "length": 2048, "pass": "forward", "kind": "flash", "tflops": 500.0},
                       {"head_size": 64, "length": 2048, "pass": "forward", "kind": "cudnn", "tflops": 600.0}],
            step=[dict(micro_batch_size=8, step_ms=120.0, tokens_per_second=50000.0)])
with open(option("--json"), "w") as file:
    json.dump(dict(torch="9.9", sections={option("--section"): dict(rows=rows[option("--section")])}), file)
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.write("fakes/nvidia-smi", NVIDIA_SMI.format(names="'NVIDIA H100 80GB HBM3'", capabilities="9.0"))
        self.write("fakes/python", PEER)
        self.programs()

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)

    def programs(self, broken="", tests=0, delay=0, largest=1000, drift=0.0):
        self.write("build/bin/common_ops_tests", TESTS.format(code=tests, delay=delay))
        self.write("build/bin/step01_dp_tests", TESTS.format(code=0, delay=0))
        self.write("build/bin/bench_cuda", BENCH_CUDA.format(broken=broken))
        self.write("build/bin/step01_dp", TRAINER.format(largest=largest, drift=drift))

    def check(self, *options, path=None, **variables):
        environment = {**os.environ, "PATH": path or self.path("fakes") + ":" + os.environ["PATH"],
                       "PEER_PYTHON": self.path("fakes/python"), **variables}
        return subprocess.run(["bash", os.path.join(ROOT, "scripts", "gpu_check.sh"), "--prebuilt", self.path("build"),
                               "--out", self.path("out"), *options], capture_output=True, text=True, env=environment)

    def report(self):
        name, = glob.glob(self.path("out/gpu_h100_80gb_hbm3_*.json"))
        with open(name) as file:
            return json.load(file)

    def sections(self):
        return {one["name"]: one for one in self.report()["sections"]}

    def test_passes_and_sets_goals_beside_figures(self):
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = self.report()
        self.assertEqual(report["goals"]["memory"]["state"], "missed")
        self.assertIn("adamw", report["goals"]["memory"]["text"])
        self.assertAlmostEqual(report["goals"]["attention"]["found"], 330 / 500)  # not cuDNN's
        self.assertEqual(report["goals"]["attention"]["state"], "reached")
        self.assertAlmostEqual(report["goals"]["gemm"]["found"], 690 / 700)
        # 6 N + 12 L h s operations per token, on 989 TFLOP/s.
        self.assertAlmostEqual(report["goals"]["mfu"]["found"], 60000 * (6 * 1342244864 + 12 * 16 * 2048 * 2048) / 989e12)
        self.assertIn("| MFU of a 1.3B model in bfloat16 | 50 % | 53.7 % | reached |", done.stdout)
        self.assertEqual(self.sections()["ranks: 4 threads"]["result"], "passed")

    def test_one_failure_hides_no_other(self):
        self.programs(broken="gemm", tests=1)
        done = self.check()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        sections = self.sections()
        self.assertEqual(sections["operations: parity"]["result"], "failed")
        self.assertEqual(sections["speed: gemm"]["result"], "failed")
        self.assertIn("illegal memory access", sections["speed: gemm"]["remark"])
        for name in ("speed: attention", "speed: whole step", "ranks: 2 threads", "PyTorch: attention"):
            self.assertEqual(sections[name]["result"], "passed", name)

    def test_halves_the_micro_batch_until_it_fits(self):
        self.programs(largest=3)
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.report()["step"]["micro_batch_size"], 3)

    def test_notices_ranks_that_compute_something_else(self):
        self.programs(drift=0.1)
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.sections()["ranks: 2 threads"]["result"], "passed")
        self.assertEqual(self.sections()["ranks: 4 threads"]["result"], "failed")
        self.assertIn("losses differ", self.sections()["ranks: 4 threads"]["remark"])

    def test_says_what_no_longer_fitted_into_the_budget(self):
        self.programs(delay=600)
        done = self.check("--budget", "25")
        self.assertEqual(done.returncode, 1)
        sections = self.sections()
        self.assertIn("ended after", sections["operations: parity"]["remark"])
        self.assertEqual(sections["speed: whole step"]["result"], "not run")
        self.assertEqual(sections["speed: whole step"]["remark"], "out of time")

    def test_without_torch_the_rest_counts(self):
        self.write("fakes/python", f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.sections()["PyTorch: gemm"]["result"], "not run")
        self.assertEqual(self.report()["goals"]["gemm"]["state"], "not measured")
        self.assertIn("no PyTorch", self.sections()["PyTorch: gemm"]["remark"])

    def test_missing_programs_are_named(self):
        for name in glob.glob(self.path("build/bin/*")):
            os.remove(name)
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("neither step01_dp nor bench_cuda", self.sections()["programs"]["remark"])

    def test_no_gpu_is_said_and_ends_with_2(self):
        for names, capabilities, message in (("", "", "no GPU here"), ("'Tesla V100'", "7.0", "compute capability 7.0")):
            self.write("fakes/nvidia-smi", NVIDIA_SMI.format(names=names, capabilities=capabilities))
            done = self.check()
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_wrong_options_are_refused(self):
        for options in (["--fast"], ["--prebuilt", self.path("nowhere")], ["--budget", "long"], ["--out"]):
            done = self.check(*options)
            self.assertEqual(done.returncode, 2, options)
            self.assertIn("gpu_check.sh: ", done.stderr)


class Plan(unittest.TestCase):
    def test_more_memory_takes_more_sequences_and_too_little_takes_layers_away(self):
        self.assertEqual(gpu_report.plan(150e9), (16, 16))
        self.assertEqual(gpu_report.plan(42e9)[1], 16)
        self.assertLess(gpu_report.plan(25e9)[1], 16)

    def test_names_of_devices(self):
        self.assertEqual(gpu_report.peak("NVIDIA H200"), 989)
        self.assertEqual(gpu_report.peak("NVIDIA A100-SXM4-80GB"), 312)
        self.assertEqual(gpu_report.peak("NVIDIA H20"), 148)
        self.assertIsNone(gpu_report.peak("NVIDIA RTX A4000"))

    def test_parameters_are_those_of_the_model(self):
        self.assertEqual(gpu_report.parameters(gpu_report.model(), 16), 1342244864)


if __name__ == "__main__":
    unittest.main()
