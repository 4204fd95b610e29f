"""Where a hub's files are, and that hubs on one ledger have them in common."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ostler import config
from ostler.domain.errors import BadInput, LedgerError
from ostler.hub import stores
from ostler.hub.settings import load
from ostler.ledger.memory import MemoryLedger

TOKENS = ("admin.token", "join.token")


def folders(tmp_path: Path, *names: str) -> list[Path]:
    made = [tmp_path / name for name in names]
    for folder in made:
        folder.mkdir()
    return made


def tokens(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in TOKENS]


def test_every_hub_on_a_store_has_the_same_tokens_in_its_own_folder_for_itself_alone(tmp_path: Path) -> None:
    store, first, second = folders(tmp_path, "store", "first", "second")
    (first / "admin.token").write_text("as-it-was-before\n")
    (second / "admin.token").write_text("of-another-hub\n")
    for state in (first, second, first):
        stores.prepare(store, state)
    assert tokens(store) == tokens(first) == tokens(second)
    assert tokens(store)[0] == "as-it-was-before\n", "whoever comes first keeps its own"
    for folder in (store, first, second):
        assert all((folder / name).stat().st_mode & 0o077 == 0 for name in TOKENS[1:])


def test_of_hubs_that_come_to_an_empty_store_at_once_one_makes_the_tokens(tmp_path: Path) -> None:
    states = folders(tmp_path, *(f"hub-{number}" for number in range(8)))
    with ThreadPoolExecutor(8) as coming:
        list(coming.map(lambda state: stores.prepare(tmp_path / "store", state), states))
    assert len({tuple(tokens(state)) for state in states}) == 1
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == sorted(TOKENS), "no draft is left"


def test_a_ledger_goes_with_the_store_of_its_first_leader(tmp_path: Path) -> None:
    store, other = folders(tmp_path, "store", "other")
    ledger = MemoryLedger()
    stores.refuse_another(ledger, other, "the ledger")  # nobody has led yet
    stores.claim(ledger, store, "the ledger")
    stores.claim(ledger, store, "the ledger")
    for refused in (stores.refuse_another, stores.claim):
        with pytest.raises(LedgerError, match="--store DIR") as told:
            refused(ledger, other, "the ledger")
    command = str(told.value).partition("echo ")[2]
    (other / "store.id").write_text(command.split()[0])
    stores.claim(ledger, other, "the ledger")


def test_the_flag_goes_before_the_variable_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ostler.toml"
    file.write_text('store = "/of/the/file"\nurl = "http://file:1/"')
    chosen, state = load(file), tmp_path
    for variable in ("OSTLER_STORE", "OSTLER_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert (config.store_places("", "", state), config.own_url("", "")) == ((state, ""), "")
    assert config.store_places("", chosen.store, state) == (Path("/of/the/file"), "")
    assert config.own_url("", chosen.url) == "http://file:1"
    monkeypatch.setenv("OSTLER_STORE", "/of/the/variable")
    monkeypatch.setenv("OSTLER_URL", "https://variable")
    assert config.store_places("", chosen.store, state) == (Path("/of/the/variable"), "")
    assert config.own_url("", chosen.url) == "https://variable"
    assert config.store_places("/of/the/flag", chosen.store, state) == (Path("/of/the/flag"), "")
    assert config.own_url("http://flag", chosen.url) == "http://flag"


@pytest.mark.parametrize("text", ["store = 3", "url = 3"])
def test_a_setting_that_is_no_text_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ostler.toml"
    file.write_text(f"\n{text}\n")
    with pytest.raises(BadInput, match=rf"ostler.toml:2: {text.split()[0]}: must be an? \w+ in quotes"):
        load(file)


def test_an_address_of_a_hub_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="'hub-a:7600' is not an address"):
        config.own_url("hub-a:7600", "")
