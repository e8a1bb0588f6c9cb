"""Man pages and completions: as the parsers are now, complete, and, for the shell that is here, at work."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from bayplan.agent import command_line as agent
from bayplan.cli import kubectl_bayplan
from bayplan.cli.bayplan import EXIT_STATUSES, OUTPUTS, VERBS, build_parser
from bayplan.config import keys
from bayplan.config.keys import KEYS
from reference.__main__ import reference
from reference.man_pages import command_of, every_option

TREE = Path(__file__).parents[3]
FILES = reference()


@pytest.mark.parametrize("path", FILES)
def test_what_is_in_the_tree_is_what_the_parsers_say(path: str) -> None:
    assert (TREE / path).read_text() == FILES[path], "run `make reference`"


PARSERS = {
    "bayplan": build_parser,
    "baypland": keys.build_parser,
    "bayplan-agent": agent.build_parser,
    "kubectl-bayplan": kubectl_bayplan.build_parser,
}


@pytest.mark.parametrize("path", FILES)
def test_every_verb_and_every_flag_is_there(path: str) -> None:
    command = Path(path).stem.removeprefix("_")
    text = FILES[path].replace("\\-", "-")
    assert command != "bayplan" or all(verb in text for verb in VERBS)
    for option in every_option(command_of(PARSERS[command]())):
        for flag in option.flags:
            in_fish = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            assert (in_fish if path.endswith(".fish") else flag) in text


def test_the_daemons_page_has_every_key_and_the_clients_every_exit_status() -> None:
    text = FILES["docs/man/baypland.8"].replace("\\-", "-")
    assert all(f"--{key.flag}" in text for key in KEYS.values())
    client = FILES["docs/man/bayplan.1"]
    assert all(f".TP\n.B {status}\n" in client for status in EXIT_STATUSES)


def test_every_program_has_a_page_that_is_installed() -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())
    pages = {path for path in FILES if path.startswith("docs/man/")}
    assert {Path(path).stem for path in pages} == project["project"]["scripts"].keys()
    assert pages <= project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].keys()


def test_the_document_has_every_verb_and_every_exit_status() -> None:
    text = (TREE / "docs/command-line.md").read_text()
    assert [verb for verb in VERBS if f"| `{verb}" not in text] == []
    assert [status for status in EXIT_STATUSES if f"| {status} | " not in text] == []


def test_pages_have_no_line_that_roff_would_take_for_a_request() -> None:
    known = (".TH", ".SH", ".SS", ".TP", ".B ")
    for path, text in FILES.items():
        if path.startswith("docs/man"):
            assert all(line.startswith(known) for line in text.splitlines() if line[:1] in (".", "'"))


def completed(*words: str, known: str = "") -> list[str]:
    """What bash offers for the last of *words*; a bayplan on the way answers *known*."""
    script = (
        f"bayplan() {{ printf %b {known!r}; }}\n"
        f"source {TREE / 'packaging/completions/bayplan.bash'}\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_bayplan; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    shell = ["bash", "-c", script, "bash", "bayplan", *words]
    return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_verbs_flags_and_values(tmp_path: Path) -> None:
    assert set(completed("")) >= set(VERBS)
    assert completed("expl") == ["explain"]
    assert completed("status", "--outc") == ["--outcome"]
    assert completed("status", "-o", "") == list(OUTPUTS)
    assert completed("-o", "json", "nod") == ["nodes"]
    (tmp_path / "machine.toml").touch()
    assert completed("simulate", "--topology", f"{tmp_path}/m") == [f"{tmp_path}/machine.toml"]
    assert completed("log-level", "de") == ["debug"]
    assert completed("status", "--watch", "2", "--outc") == ["--outcome"]


@pytest.mark.parametrize("command", ["baypland", "bayplan-agent", "kubectl-bayplan"])
def test_every_command_has_completions_of_each_shell(command: str) -> None:
    known = tomllib.loads((TREE / "pyproject.toml").read_text())
    installed = known["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for source, target, names in (
        (
            f"{command}.bash",
            f"bash-completion/completions/{command}",
            f"complete -o bashdefault -F _shtab_{command.replace('-', '_')} {command}",
        ),
        (f"_{command}", f"zsh/site-functions/_{command}", f"#compdef {command}"),
        (f"{command}.fish", f"fish/vendor_completions.d/{command}.fish", f"complete -c {command}"),
    ):
        assert names in (TREE / "packaging/completions" / source).read_text(), source
        assert installed[f"packaging/completions/{source}"] == f"share/{target}"


def test_bash_asks_the_daemon_for_names() -> None:
    known = "shop/web-0/main\nshop/db-0/main\nprod/x/y\n"
    assert completed("explain", "shop/w", known=known) == ["shop/web-0/main"]
    assert completed("history", "prod", known=known) == ["prod/x/y"]
    assert completed("status", "-n", "", known=known) == ["prod", "shop"]
