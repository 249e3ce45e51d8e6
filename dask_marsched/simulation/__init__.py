"""Simulates a Dask graph on a cluster, in virtual time: the digital twin."""

from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.graph_file import load_graph, save_graph
from dask_marsched.simulation.report.report import SimulationReport
from dask_marsched.simulation.report.timeline import Timeline
from dask_marsched.simulation.simulate import simulate

__all__ = [
    "Costs",
    "SimulationReport",
    "Timeline",
    "load_graph",
    "save_graph",
    "simulate",
]
