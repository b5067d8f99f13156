"""Shell completion, asked for in a real bash as a person's Tab would."""

import shutil
import subprocess
import sys

import pytest

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

TAB = """
source {script}
read -r _ _ function _ <<< "$(complete -p ampbridge | sed 's/.*-F/complete -F/; s/complete -F/x x/')"
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
COMP_LINE="{line}"
COMP_POINT=${{#COMP_LINE}}
"$function" ampbridge "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "ampbridge.bash"
    file.write_text(written("bash"))
    return file


def written(shell):
    command = [sys.executable, "-m", "ampbridge", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def completed(script, *words, folder):
    """What bash offers for the last word."""
    text = TAB.format(
        script=script, words=" ".join(f"'{word}'" for word in words), line=" ".join(words)
    )
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", text],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


@needs_bash
@pytest.mark.parametrize(
    "words, offered",
    [
        (("ampbridge", "co"), {"compare", "completion"}),
        (("ampbridge", "de"), {"demo"}),
        (("ampbridge", "demo", "--backend", "t"), {"tensorflow", "torch"}),
        (("ampbridge", "lists", ""), {"show", "diff", "why", "translate"}),
        (("ampbridge", "completion", ""), {"bash", "zsh", "tcsh"}),
        (("ampbridge", "doctor", "--framework", "t"), {"tensorflow", "torch"}),
        (("ampbridge", "explain", "O1", "p"), {"paddle"}),
        (("ampbridge", "port", "a.py", "--to", "to"), {"torch", "toml"}),
    ],
)
def test_bash_offers(script, words, offered, tmp_path):
    assert completed(script, *words, folder=tmp_path) == offered


@needs_bash
def test_bash_offers_options(script, tmp_path):
    offered = completed(script, "ampbridge", "compare", "--", folder=tmp_path)
    assert {"--backends", "--native", "--workload", "--json", "--quiet", "--output"} <= offered


@needs_bash
def test_bash_offers_files_where_a_file_belongs(script, tmp_path):
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "other").mkdir()
    assert completed(script, "ampbridge", "compare", "re", folder=tmp_path) == {"recipe.toml"}
    folders = completed(script, "ampbridge", "compare", "--output", "", folder=tmp_path)
    assert {folder.rstrip("/") for folder in folders} == {"other"}


@needs_bash
@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script_that_knows_the_commands(shell):
    text = written(shell)
    for command in ("demo", "doctor", "explain", "lists", "port", "lens", "compare", "completion"):
        assert command in text


def test_without_shtab():
    code = (
        "import sys; sys.modules['shtab'] = None\n"
        "from ampbridge.cli import main\n"
        "sys.exit(main(['completion', 'bash']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("Hint: pip install 'ampbridge[completion]'\n")


def test_the_parser_takes_more_than_it_completes():
    """Known words are offered, and others are taken: an unknown backend gets its own message."""
    command = [sys.executable, "-m", "ampbridge", "explain", "O1", "pytorch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Hint: did you mean 'torch'?" in done.stderr
