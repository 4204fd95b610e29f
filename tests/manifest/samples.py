"""Manifests that the tests share, and short ways to read one."""

import pytest

from ostler.domain.errors import BadInput
from ostler.domain.job import JobSpec
from ostler.manifest import read

EXAMPLE = """\
[hosts.pi]                       # policy per host; hosts not named are free
allow_jobs = ["gbt", "mlp"]      # by model; empty = all
deny_jobs = []
capability = { cpu_cores = 2 }   # caps what the host offers

[defaults]                       # merged under every job
command = ["python", "-m", "trainer", "--model", "{model}", "--mode", "{mode}", "--out", "{out}", "{hyper...}"]

[[jobs]]
name = "gbt-realistic"
model = "gbt"
mode = "realistic"
priority = 10
require_cuda = false
prefer_cuda = true
min_vram_gib = 0.0
min_ram_gib = 2.0
min_cores = 1
allowed_hosts = []
denied_hosts = []
split_recipe = "host"
train_hosts = ["a"]
seed = 0
n_resamples = 100
hyper = { depth = 6, lr = 0.1 }

[[sweeps]]                       # beyond: a grid or a list expands into jobs
name = "mlp-{lr}-{width}"        # any job key in braces; other job keys stand beside
model = "mlp"
mode = "realistic"
grid = { lr = [0.1, 0.01], width = [64, 128] }   # goes into hyper; or list = [{ lr = 0.1, width = 64 }]
"""

EVERY_KEY = """\
[hosts."big.example.org"]
capability = { cpu_cores = 0.5, ram_gib = 64, vram_gib = 24.5, gpu_count = 2 }

[defaults]
command = ["train", "{name}", "{seed}", '{"lr": {lr}, "of": ["{model}"]}', "{hyper...}"]
env = { HOME = "/tmp", "A.B" = "1" }
hyper.lr = 0.5
hyper.wide = true

[[jobs]]
name = \"""all-of-it\"""
model = 'm'
mode = "full"
priority = -5
require_cuda = true
prefer_cuda = true
prefer_cuda_grace_s = 60
min_vram_gib = 8
min_ram_gib = 1.5
min_cores = 0.5
allowed_hosts = ["a", "b"]
denied_hosts = ["c"]
split_recipe = "time"
train_hosts = ["z", "a"]
seed = 42
n_resamples = 7
max_runtime_hours = 12
max_attempts = 5
max_retries = 2
preemptible = true
labels = ["zone = eu", "driver >= 550"]
metric = "auc"
goal = "max"
[jobs.hyper]
layers = [64, 32]
opt = { name = "adam", eps = 1e-8 }
[jobs.env]
HOME = "/home"

[[jobs]]
model = "tiny"
"""

ODD_SPELLING = """\
defaults.command = [
  "x",   # a comment, with ] and "quotes"
  '''
literal''', \"""
multi \\
  line\"""\"", "{out}",
]
jobs = [
  { model = "a", hyper = { "a b" = 1, 'c.d' = [1, [2, 3]] } },
  { model = "a", seed = 0x10, hyper.x.y = 1_000 },
]
[[sweeps]]
name = "s-{k}"
list = [{ k = 1 }, { k = "two", l = false },
  { k = [1, 2] }]
"""

NO_JOBS = """\
# Nothing to train, but a host to spare.
[hosts.spare]
deny_jobs = ["all"]
"""

SAMPLES = (EXAMPLE, EVERY_KEY, ODD_SPELLING, NO_JOBS)


def job(text: str) -> JobSpec:
    """The one job of a manifest that has a command and this."""
    (spec,) = read(f'defaults.command = ["train"]\n[[jobs]]\n{text}').specs
    return spec


def errors_of(text: str | bytes) -> list[tuple[str, str]]:
    with pytest.raises(BadInput) as caught:
        read(text)
    return caught.value.errors
