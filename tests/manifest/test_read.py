"""What a manifest says, as policies and specs."""

import msgspec
import pytest
from tests.manifest.samples import EVERY_KEY, EXAMPLE, NO_JOBS, ODD_SPELLING, SAMPLES, job

from ostler.domain.hosts import HostPolicy
from ostler.domain.job import JobSpec, Training, decode_spec
from ostler.manifest import read


def test_the_example_gives_its_host_its_job_and_its_sweep() -> None:
    manifest = read(EXAMPLE)
    assert manifest.hosts == {"pi": HostPolicy(allow_jobs=("gbt", "mlp"), cpu_cores=2.0)}
    first, *swept = manifest.specs
    assert first == JobSpec(
        id="9f505134f367f73f8abc9aceedac5cb842445ce87e6a392acd1a07a90b85c89d",
        name="gbt-realistic",
        user_id="manifest",
        job_tier="training",
        on_lost_contact="stop",
        priority=10,
        prefer_cuda=True,
        min_memory_gb=2.0,
        min_cpu_cores=1.0,
        command="python -m trainer --model gbt --mode realistic --out $OSTLER_OUT --depth 6 --lr 0.1".split(),
        training=Training(
            model="gbt",
            mode="realistic",
            hyper={"depth": 6, "lr": 0.1},
            split_recipe="host",
            train_hosts=["a"],
            n_resamples=100,
        ),
    )
    assert [spec.name for spec in swept] == ["mlp-0.1-64", "mlp-0.1-128", "mlp-0.01-64", "mlp-0.01-128"]
    assert {spec.training.sweep for spec in swept if spec.training} == {"mlp-{lr}-{width}"}
    assert [manifest.lines[spec.id] for spec in manifest.specs] == [9, 27, 27, 27, 27]


def test_every_key_reaches_its_field() -> None:
    manifest = read(EVERY_KEY)
    assert manifest.hosts == {
        "big.example.org": HostPolicy(cpu_cores=0.5, ram_gib=64.0, vram_gib=24.5, gpu_count=2),
    }
    spec = manifest.specs[0]
    hyper = {"lr": 0.5, "wide": True, "layers": [64, 32], "opt": {"name": "adam", "eps": 1e-8}}
    assert spec == JobSpec(
        id=spec.id,
        name="all-of-it",
        user_id="manifest",
        job_tier="training",
        on_lost_contact="stop",
        gpu_backend="nvidia",
        gpu_count=1,
        min_vram_gb=8.0,
        min_memory_gb=1.5,
        min_cpu_cores=0.5,
        allowed_hosts=["a", "b"],
        denied_hosts=["c"],
        priority=-5,
        max_runtime_hours=12.0,
        max_attempts=5,
        max_retries=2,
        preemptible=True,
        labels=["zone = eu", "driver >= 550"],
        env={"HOME": "/home", "A.B": "1"},
        command=[
            *("train", "all-of-it", "42", '{"lr": 0.5, "of": ["m"]}'),
            *("--lr", "0.5", "--wide", "--layers", "[64,32]", "--opt", '{"name":"adam","eps":1e-08}'),
        ],
        training=Training(
            model="m",
            mode="full",
            hyper=hyper,
            split_recipe="time",
            train_hosts=["a", "z"],
            seed=42,
            n_resamples=7,
            metric="auc",
            goal="max",
        ),
    )


def test_odd_spellings_of_toml_are_understood() -> None:
    specs = read(ODD_SPELLING).specs
    assert specs[0].command == ["x", "literal", 'multi line""', "$OSTLER_OUT"]
    assert [spec.training.hyper for spec in specs if spec.training] == [
        {"a b": 1, "c.d": [1, [2, 3]]},
        {"x": {"y": 1000}},
        {"k": 1},
        {"k": "two", "l": False},
        {"k": [1, 2]},
    ]


def test_a_manifest_may_have_no_jobs() -> None:
    assert read("").specs == []
    assert read(NO_JOBS).hosts == {"spare": HostPolicy(deny_jobs=("all",))}


@pytest.mark.parametrize("text", SAMPLES)
def test_bytes_crlf_and_a_byte_order_mark_read_the_same(text: str) -> None:
    manifest = read(text)
    assert read(text.encode()) == manifest
    assert read(b"\xef\xbb\xbf" + text.encode()) == manifest
    assert read(text.replace("\n", "\r\n")) == manifest


@pytest.mark.parametrize("text", SAMPLES)
def test_a_spec_comes_back_from_its_bytes_as_it_was(text: str) -> None:
    for spec in read(text).specs:
        data = msgspec.json.encode(spec)
        assert decode_spec(data) == spec
        assert msgspec.json.encode(decode_spec(data)) == data


def test_defaults_lie_under_jobs_and_sweeps_and_their_tables_merge_key_by_key() -> None:
    first, second = read(
        """
        defaults = { command = ["c"], mode = "slow", priority = 3, hyper = { a = 1, b = 2 }, env = { A = "1", B = "2" } }
        [[jobs]]
        model = "m"
        mode = "fast"
        hyper = { b = 3 }
        env = { B = "3", C = "4" }
        [[sweeps]]
        name = "s{b}"
        grid = { b = [5] }
        """
    ).specs
    assert first.training == Training(model="m", mode="fast", hyper={"a": 1, "b": 3})
    assert (first.priority, first.env) == (3, {"A": "1", "B": "3", "C": "4"})
    assert second.training == Training(mode="slow", hyper={"a": 1, "b": 5}, sweep="s{b}")
    assert (second.name, second.env) == ("s5", {"A": "1", "B": "2"})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('model = "m"\nmode = "x"', "m-x"),
        ('model = "m"', "m"),
        ('model = "m"\nname = "n"', "n"),
        ('name = "n"', "n"),
        ('model = "m"\nname = "the-{model}"', "the-m"),
    ],
)
def test_a_job_without_a_name_is_called_after_its_model_and_mode(text: str, name: str) -> None:
    assert job(text).name == name


@pytest.mark.parametrize(
    ("text", "gpus", "backend", "prefers", "grace_s"),
    [
        ("", 0, "", False, 300.0),
        ("require_cuda = true", 1, "nvidia", False, 300.0),
        ("prefer_cuda = true", 0, "", True, 300.0),
        ("prefer_cuda = true\nprefer_cuda_grace_s = 0.5", 0, "", True, 0.5),
        ("prefer_cuda = true\nrequire_cuda = true\nprefer_cuda_grace_s = 9", 1, "nvidia", False, 300.0),
        ("prefer_cuda_grace_s = 9", 0, "", False, 300.0),
    ],
)
def test_cuda_is_required_preferred_or_neither(
    text: str, gpus: int, backend: str, prefers: bool, grace_s: float
) -> None:
    spec = job(f'model = "m"\n{text}')
    assert (spec.gpu_count, spec.gpu_backend) == (gpus, backend)
    assert (spec.prefer_cuda, spec.prefer_cuda_grace_seconds) == (prefers, grace_s)


def test_vram_alone_is_a_share_of_one_device() -> None:
    spec = job('model = "m"\nmin_vram_gib = 4')
    assert (spec.min_vram_gb, spec.gpu_count, spec.gpu_backend) == (4.0, 0, "")


def test_a_goal_from_the_defaults_counts_only_where_there_is_a_metric() -> None:
    with_metric, without = read(
        'defaults = { command = ["c"], goal = "min" }\n[[jobs]]\nmodel = "a"\nmetric = "loss"\n[[jobs]]\nmodel = "b"'
    ).specs
    assert with_metric.training == Training(model="a", metric="loss", goal="min")
    assert without.training == Training(model="b")


def test_whole_numbers_may_be_spelt_with_a_point() -> None:
    spec = job('model = "m"\npriority = 1e1\nseed = 3.0\nmax_attempts = 2.0')
    assert (spec.priority, spec.max_attempts) == (10, 2)
    assert spec.training == Training(model="m", seed=3)
    assert spec.id == job('model = "m"\nseed = 3').id
