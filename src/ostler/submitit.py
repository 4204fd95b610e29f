"""The shape of submitit's executor on a fleet: for scripts that were written for Slurm with it.

from ostler.submitit import AutoExecutor

executor = AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=60, cpus_per_task=4, gpus_per_node=1, mem_gb=16)
jobs = executor.map_array(train, rates, seeds)
"""

from ostler.client.submitting import AutoExecutor, Job

__all__ = ["AutoExecutor", "Job"]
