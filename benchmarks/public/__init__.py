"""Runs a public benchmark suite, the tests of github.com/coiled/benchmarks, under each policy.

Its files are not changed. `coiled.Cluster` is a local cluster instead (`local_coiled`), and
`measuring` is the plugin of pytest that puts the probes on it.
"""
