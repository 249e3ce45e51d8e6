"""The digital twin: run a Dask graph on a simulated cluster, in virtual time."""

from dask_marsched.simulation.costs import Costs, derive_costs, record_costs
from dask_marsched.simulation.report import SimulationReport, Timeline
from dask_marsched.simulation.simulate import simulate

__all__ = ["Costs", "SimulationReport", "Timeline", "derive_costs", "record_costs", "simulate"]
