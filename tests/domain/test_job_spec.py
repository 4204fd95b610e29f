"""What a spec may be, and how a wrong one is refused: by name, with what to do, all at once."""

import json
from typing import Any

import pytest

from ostler.domain import job
from ostler.domain.errors import BadInput, TooLarge
from ostler.domain.job import MAX_ARRAY, MAX_SPEC_BYTES, Auto, JobSpec, decode_spec
from ostler.domain.resources import Request


def spec(**fields: Any) -> JobSpec:
    return decode_spec(json.dumps({"command": ["true"], **fields}).encode())


def refused(**fields: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        spec(**fields)
    return caught.value


def named(error: BadInput) -> set[str]:
    return {field for field, _ in error.errors}


def test_a_command_is_all_that_a_spec_needs() -> None:
    assert spec() == JobSpec(command=["true"])
    assert spec().request() == Request()


def test_an_unknown_field_is_refused_with_the_name_that_was_meant() -> None:
    error = refused(gpu_cuont=2)
    assert "unknown field 'gpu_cuont'; did you mean 'gpu_count'?" in str(error)
    assert named(error) == {"gpu_cuont"}


def test_an_unknown_field_that_resembles_nothing_is_refused_without_a_guess() -> None:
    assert str(refused(xyzzyx=2)) == "unknown field 'xyzzyx'"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_count", "two"),
        ("gpu_count", 1.5),
        ("gpu_count", True),
        ("gpu_count", None),
        ("min_vram_gb", "16g"),
        ("min_cpu_cores", []),
        ("command", "true"),
        ("command", [1]),
        ("env", ["A=1"]),
        ("env", {"A": 1}),
        ("name", 7),
        ("preemptible", "yes"),
        ("labels", "zone = eu"),
        ("labels", [1]),
        ("priority", "high"),
        ("metadata", []),
        ("array", "5"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert [where.partition("[")[0] for where, _ in error.errors] == [field]
    assert field in str(error)


@pytest.mark.parametrize(
    "field",
    "gpu_count min_vram_gb min_cpu_cores min_memory_gb node_count max_runtime_hours scheduling_timeout_seconds "
    "max_attempts max_retries array".split(),
)
@pytest.mark.parametrize("value", [-1, -0.001, 1e300, 10**30])
def test_a_negative_or_absurd_amount_is_refused_by_name(field: str, value: float) -> None:
    assert named(refused(**{field: value})) == {field}


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_an_amount_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        decode_spec(b'{"command":["true"],"min_memory_gb":%s}' % text.encode())


@pytest.mark.parametrize("command", [[], [""], ["", "x"]])
def test_an_empty_command_is_refused(command: list[str]) -> None:
    assert named(refused(command=command)) == {"command"}


def test_a_missing_command_is_refused() -> None:
    with pytest.raises(BadInput, match="command"):
        decode_spec(b"{}")


@pytest.mark.parametrize(
    ("field", "value"),
    [("command", ["a\0b"]), ("command", ["a", "\0"]), ("env", {"A": "\0"}), ("env", {"A\0": "1"})],
)
def test_nul_characters_are_refused_where_a_process_would_choke_on_them(field: str, value: Any) -> None:
    assert named(refused(**{field: value})) == {field}


@pytest.mark.parametrize("env", [{"": "1"}, {"A=B": "1"}])
def test_a_variable_that_no_process_can_have_is_refused(env: dict[str, str]) -> None:
    assert named(refused(env=env)) == {"env"}


@pytest.mark.parametrize("id_", ["-x", "_x", "a.b", "a/b", "a b", "ü", "x" * 129, "a\n", "../x"])
def test_an_id_that_is_not_in_the_form_is_refused(id_: str) -> None:
    assert named(refused(id=id_)) == {"id"}


@pytest.mark.parametrize("id_", ["", "a", "A9", "0-_", "x" * 128])
def test_an_id_in_the_form_is_taken(id_: str) -> None:
    assert spec(id=id_).id == id_


def test_a_name_that_is_too_long_is_refused() -> None:
    assert spec(name="n" * 256)
    assert named(refused(name="n" * 257)) == {"name"}


def test_a_spec_over_the_limit_is_refused_as_too_large_whatever_is_in_it() -> None:
    with pytest.raises(TooLarge, match=str(MAX_SPEC_BYTES)) as caught:
        spec(env={"A": "x" * MAX_SPEC_BYTES})
    assert caught.value.status == 413
    with pytest.raises(TooLarge):
        decode_spec(b"{" * (MAX_SPEC_BYTES + 1))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"command":["\xff"]}'])
def test_bytes_that_are_not_a_spec_are_bad_input_and_nothing_else(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode_spec(data)


def test_a_spec_nested_too_deep_is_bad_input_and_nothing_else() -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    with pytest.raises(BadInput):
        decode_spec(b'{"command":["true"],"metadata":{"x":%s}}' % deep)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("type", "cron", "batch, service"),
        ("slot_pool", "gpu", "batch, service"),
        ("job_tier", "urgent", "fine_tuning, training, evaluation, data_processing"),
        ("gpu_backend", "cuda", "cpu, nvidia, metal, vulkan, rocm, tpu"),
        ("array", MAX_ARRAY + 1, str(MAX_ARRAY)),
        ("labels", ["zone"], "label op value"),
        ("prefer_labels", ["zone ~ x"], "label op value"),
    ],
)
def test_a_bad_value_is_refused_with_those_that_are_good(field: str, value: Any, told: str) -> None:
    error = refused(**{field: value})
    assert named(error) == {field}
    assert told in str(error)


@pytest.mark.parametrize("priority", [-1_000_001, 1_000_001])
def test_a_priority_out_of_bounds_is_refused(priority: int) -> None:
    assert named(refused(priority=priority)) == {"priority"}


def test_an_array_of_gangs_is_refused() -> None:
    assert "array" in named(refused(array=2, node_count=2))


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", "~/x", "a\0b"])
def test_outputs_are_paths_inside_the_working_directory(path: str) -> None:
    error = refused(outputs=["fine/here", path])
    assert named(error) == {"outputs"}


def test_every_wrong_field_is_named_at_once() -> None:
    error = refused(
        command=[""],
        id="a b",
        name="n" * 300,
        type="cron",
        job_tier="urgent",
        slot_pool="gpu",
        gpu_backend="cuda",
        env={"": ""},
        labels=["zone"],
        prefer_labels=["x ~ y"],
        outputs=["/o"],
    )
    wrong = "command id name type job_tier slot_pool gpu_backend env labels prefer_labels outputs".split()
    assert named(error) == set(wrong)
    assert all(field in str(error) for field in wrong)


def test_wrong_types_and_wrong_values_are_named_at_once_too() -> None:
    assert named(refused(gpu_count=-1, min_memory_gb="8g", job_tier="urgent", nmae="x")) >= {
        "gpu_count",
        "min_memory_gb",
        "job_tier",
        "nmae",
    }


def test_a_prefix_says_which_spec_of_many_is_wrong() -> None:
    with pytest.raises(BadInput) as caught:
        decode_spec(b'{"command":[],"job_tier":"urgent"}', "[3].")
    assert named(caught.value) == {"[3].command", "[3].job_tier"}
    with pytest.raises(BadInput) as caught:
        decode_spec(b'{"command":["x"],"gpu_count":-1}', "[3].")
    assert named(caught.value) == {"[3].gpu_count"}


def test_0_and_empty_and_absent_mean_no_requirement() -> None:
    nothing = spec(gpu_count=0, gpu_type="", gpu_backend="", min_vram_gb=0, min_cpu_cores=0, min_memory_gb=0, labels=[])
    assert nothing.request() == spec().request() == Request()


def test_a_gpu_type_is_no_longer_than_a_name_can_be() -> None:
    assert spec(gpu_type="a" * 512).request().gpu_type == "a" * 512
    with pytest.raises(BadInput, match="gpu_type: must have at most 512 characters"):
        spec(gpu_type="a" * 513)


def test_auto_is_no_gpu_type_and_case_does_not_matter() -> None:
    assert spec(gpu_type="auto").request() == spec(gpu_type="AUTO").request() == spec().request()
    assert spec(gpu_type="A100").request() == spec(gpu_type="a100").request()
    assert spec(gpu_type="H100|A100").request() == spec(gpu_type=" a100 | h100|A100|").request()
    assert spec(gpu_type="H100|auto").request() == spec().request()
    assert spec(gpu_backend="NVIDIA").request().backend == "nvidia"


def test_equal_needs_are_one_shape_however_they_are_written() -> None:
    first = spec(labels=["zone = eu", "driver >= 550"], min_memory_gb=8, name="a", priority=3, env={"A": "1"})
    second = spec(labels=["driver>=550", "zone==eu"], min_memory_gb=8.0, name="b")
    assert first.request() == second.request()


def test_a_need_is_rounded_up_to_whole_units() -> None:
    request = spec(min_cpu_cores=0.0001, min_memory_gb=0.0001, min_vram_gb=1.00001).request()
    assert (request.cores_milli, request.memory_mib, request.vram_mib) == (1, 1, 1025)


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, "half", True])
def test_a_part_of_a_gpu_is_above_nothing_and_below_a_whole_one(share: Any) -> None:
    assert named(refused(gpu_share=share)) == {"gpu_share"}


def test_a_part_of_a_gpu_is_counted_in_thousandths_and_needs_no_whole_one() -> None:
    parts = [spec(gpu_share=share).request().gpu_milli for share in (0, 0.00001, 1 / 3, 0.5, 0.9999)]
    assert parts == [0, 1, 333, 500, 999]
    assert spec(gpu_share=0.5).request().shares_gpu
    assert named(refused(gpu_share=0.5, gpu_count=1)) == {"gpu_share"}


def test_the_pool_is_that_of_the_type_unless_it_is_named() -> None:
    assert spec().request().pool == "batch"
    assert spec(type="service").request().pool == "service"
    assert spec(type="service", slot_pool="batch").request().pool == "batch"


@pytest.mark.parametrize(
    ("fields", "hours"),
    [
        ({}, 24),
        ({"max_runtime_hours": 2}, 2),
        ({"max_runtime_hours": 0.5}, 0.5),
        ({"max_runtime_hours": 500}, 168),
        ({"type": "service"}, 0),
        ({"type": "service", "max_runtime_hours": 500}, 500),
    ],
)
def test_the_run_time_budget_has_a_default_and_a_bound_for_batch_alone(fields: dict[str, Any], hours: float) -> None:
    assert spec(**fields).terms().max_runtime_s == hours * 3600


@pytest.mark.parametrize(
    ("tier", "grace_s"), [("data_processing", 30), ("evaluation", 120), ("training", 600), ("fine_tuning", 600)]
)
def test_each_tier_has_its_grace(tier: str, grace_s: float) -> None:
    assert spec(job_tier=tier).terms().grace_s == grace_s


def test_an_amount_may_be_left_to_what_its_kind_has_taken() -> None:
    decoded = spec(min_vram_gb="auto", min_memory_gb="auto", first_memory_gb=2)
    request, terms = decoded.request(), decoded.terms()
    assert (request.gpu_count, request.vram_mib, request.memory_mib) == (1, 0, 2048)
    assert terms.auto == Auto(vram=True, memory=True, memory_mib=2048)
    assert spec(min_vram_gb="auto", first_vram_gb=6).request().gpu_count == 0
    assert spec(min_vram_gb="auto", gpu_count=3).request().gpu_count == 3
    assert spec(min_vram_gb=4).terms().auto is None


def test_a_limit_that_the_user_gave_is_told_from_the_default() -> None:
    assert not spec().terms().limited
    assert spec(max_runtime_hours=24).terms().limited
    assert spec(on_oom="larger").terms().grows
    assert not spec(on_oom="fail").terms().grows


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"min_vram_gb": "much"}, "min_vram_gb"),
        ({"min_vram_gb": "auto", "gpu_share": 0.5}, "min_vram_gb"),
        ({"first_vram_gb": 6}, "min_vram_gb"),
        ({"on_oom": "bigger"}, "on_oom"),
    ],
)
def test_what_is_left_open_in_a_way_that_says_nothing_is_refused(fields: dict[str, Any], field: str) -> None:
    assert named(refused(**fields)) == {field}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("min_memory_gb", "8g", "min_memory_gb: must be a number of GiB, or \"auto\"; not '8g'"),
        ("min_vram_gb", "16g", "min_vram_gb: must be a number of GiB, or \"auto\"; not '16g'"),
        ("command", "ls -l", 'command: must be a list of words, like ["ls","-l"]; not one text'),
        ("training", {"sweeep": "x"}, "training: has an unknown field 'sweeep'; did you mean 'sweep'?"),
        ("health_check", {"xyzzy": 1}, "health_check: has an unknown field 'xyzzy'"),
    ],
)
def test_what_is_wrong_in_a_spec_is_said_in_the_words_of_specs(field: str, value: object, told: str) -> None:
    assert str(refused(**{field: value})) == told


def test_a_rule_is_asked_only_where_one_of_its_fields_is_given_because_it_holds_without() -> None:
    plain = JobSpec(command=["true"])
    assert all(rule.holds(plain) for rule in job._RULES)
    fields = set(JobSpec.__struct_fields__)
    assert all(fields.issuperset(rule.given) for rule in job._RULES)
    asked = {rule.blamed for rule in job._rules_for(())}
    assert asked == {"command", "env", "depends_on"}, "what is no plain value is always looked at"
