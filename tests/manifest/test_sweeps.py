"""A sweep is many jobs written as one."""

import pytest
from tests.manifest.samples import errors_of

from ostler.manifest import read

HEAD = 'defaults.command = ["c", "{hyper...}"]\n'


def names(text: str) -> list[str]:
    return [spec.name for spec in read(HEAD + text).specs]


def test_a_grid_expands_in_the_order_of_the_file_the_last_key_first() -> None:
    text = '[[sweeps]]\nname = "{z}{a}{m}"\ngrid = { z = [2, 1], a = ["y", "x"], m = [true] }'
    assert names(text) == ["2ytrue", "2xtrue", "1ytrue", "1xtrue"]
    assert read(HEAD + text).specs[0].command == ["c", "--z", "2", "--a", "y", "--m"]


def test_a_list_expands_point_by_point() -> None:
    text = '[[sweeps]]\nname = "{lr}-{w}"\nhyper = { w = 1 }\nlist = [{ lr = 0.1 }, { lr = 0.01, w = 2 }, { lr = 1 }]'
    assert names(text) == ["0.1-1", "0.01-2", "1-1"]


def test_lists_can_be_tables_of_their_own_and_grids_too() -> None:
    assert names('[[sweeps]]\nname = "{n}"\n[[sweeps.list]]\nn = 1\n[[sweeps.list]]\nn = 2') == ["1", "2"]
    assert names('[[sweeps]]\nname = "{n}"\n[sweeps.grid]\nn = [1, 2]') == ["1", "2"]


def test_jobs_come_before_sweeps_and_keep_their_order() -> None:
    text = '[[sweeps]]\nname = "s{n}"\ngrid = { n = [1, 2] }\n[[jobs]]\nmodel = "b"\n[[jobs]]\nmodel = "a"'
    assert names(text) == ["b", "a", "s1", "s2"]


def test_any_job_key_can_stand_in_a_name() -> None:
    text = '[[sweeps]]\nname = "{model}/{mode}/{seed}/{n}"\nmodel = "m"\nmode = "x"\nseed = 5\ngrid = { n = [1] }'
    assert names(text) == ["m/x/5/1"]


def test_a_hyper_key_goes_before_a_job_key_of_the_same_name() -> None:
    assert names('[[sweeps]]\nname = "s{seed}"\ngrid = { seed = [7, 8] }') == ["s7", "s8"]


def test_twenty_thousand_jobs_are_taken_and_one_more_is_not() -> None:
    grid = f"grid = {{ a = {list(range(100))}, b = {list(range(200))} }}"
    sweep = f'{HEAD}[[sweeps]]\nname = "s"\nmodel = "m"\n{grid}'
    assert len(read(sweep).specs) == 20_000
    assert errors_of(f'{sweep}\n[[jobs]]\nmodel = "one-more"') == [
        ("manifest.toml:1", "it has over 20000 jobs, sweeps expanded; one manifest may have 20000")
    ]


def test_a_grid_without_end_is_refused_before_it_is_expanded() -> None:
    grid = ", ".join(f"k{index} = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" for index in range(900))
    assert "over 20000 jobs" in errors_of(f'{HEAD}[[sweeps]]\nname = "s"\ngrid = {{ {grid} }}')[0][1]


def test_a_long_text_in_a_large_grid_is_refused() -> None:
    text = f'[[sweeps]]\nname = "s{{a}}"\nhyper = {{ long = "{"x" * 100_000}" }}\ngrid = {{ a = {list(range(1000))} }}'
    ((where, what),) = errors_of(HEAD + text)
    assert where == "manifest.toml:2: sweeps[0]"
    assert "over 32 MiB" in what


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('name = "s"', "sweeps[0]", "needs either a grid or a list"),
        ('name = "s"\ngrid = { a = [1] }\nlist = [{ a = 1 }]', "sweeps[0]", "needs either a grid or a list"),
        ("grid = { a = [1] }", "sweeps[0]", "needs a name"),
        ('name = "s"\ngrid = {}', "sweeps[0].grid", "at least one key"),
        ('name = "s"\ngrid = [1]', "sweeps[0].grid", "must be a table of lists"),
        ('name = "s"\ngrid = { a = [] }', "sweeps[0].grid.a", "at least one value"),
        ('name = "s"\ngrid = { a = 1 }', "sweeps[0].grid.a", "must be a list"),
        ('name = "s"\ngrid = { a = [1, nan] }', "sweeps[0].grid.a[1]", "finite"),
        ('name = "s"\nlist = []', "sweeps[0].list", "at least one table"),
        ('name = "s"\nlist = { a = 1 }', "sweeps[0].list", "must be a list"),
        ('name = "s"\nlist = [1]', "sweeps[0].list[0]", "must be a table, not 1"),
        ('name = "s"\nlist = [{ a = 2020-01-01 }]', "sweeps[0].list[0].a", "put dates in quotes"),
        ('name = "s"\ngrid = { a = [1, 1.0] }', "sweeps[0].grid", "two of its points are the same job"),
        ('name = "s"\nlist = [{ a = 1 }, { a = 1 }]', "sweeps[0].list", "two of its points are the same job"),
        ('name = "s"\nmodel = "m"\ngrid = { a = [1, 1.0] }', "sweeps[0].grid", "(1 and 1.0 are one number)"),
        ('name = "s"\ngrid = { a = [1, 2] }', "sweeps[0].grid", "put keys in braces into the name"),
        ('name = "s{b}"\nlist = [{ a = 1, b = 2 }, { a = 2 }]', "sweeps[0].name", "unknown name 'b' in braces"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(text: str, where: str, what: str) -> None:
    ((found, told),) = errors_of(f"{HEAD}[[sweeps]]\n{text}")
    assert found.endswith(f": {where}")
    assert what in told
