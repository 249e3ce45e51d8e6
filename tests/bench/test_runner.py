"""The alternation, with contestants that only note what they were asked."""

from benchmarks import workloads
from dask_marsched.bench import runner
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.metrics import Measurement
from dask_marsched.bench.workloads import Parameters

SETTING = Setting(workers=1, threads=1, parameters=Parameters(), timeout=1)


def test_policies_alternate_on_every_workload_and_start_afresh_every_repetition():
    log = []

    class Contestant:
        def __init__(self, policy, setting, chosen):
            self.policy = policy
            assert setting is SETTING

        def __enter__(self):
            log.append(f"+{self.policy}")
            return self

        def __exit__(self, *_):
            log.append(f"-{self.policy}")

        def measure(self, workload, repetition):
            log.append(f"{self.policy}:{workload.name}:{repetition}")
            return Measurement(workload.name, self.policy, repetition, error="only a test")

        def report(self):
            return {"active": True} if self.policy == "b" else None

    seen = []
    chosen = workloads.select(["cumsum", "stencil"])
    openers = {"a": Contestant, "b": Contestant}
    outcome = runner.run(chosen, ["a", "b"], 2, SETTING, seen.append, openers)
    assert log == [
        "+a", "+b", "a:cumsum:0", "b:cumsum:0", "b:stencil:0", "a:stencil:0", "-b", "-a",
        "+b", "+a", "b:cumsum:1", "a:cumsum:1", "a:stencil:1", "b:stencil:1", "-a", "-b",
    ]  # fmt: skip
    assert seen == outcome.measurements
    assert outcome.reports == [
        {"policy": "b", "repetition": 0, "active": True},
        {"policy": "b", "repetition": 1, "active": True},
    ]
