"""The flags that say where the agent listens: each is understood, or named with what was expected."""

from pathlib import Path

import pytest

from bayplan.agent.command_line import Address, parse


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("127.0.0.1:9476", Address("127.0.0.1", 9476)),
        ("[::1]:80", Address("::1", 80)),
        ("node-a.example:0", Address("node-a.example", 0)),
        ("none", None),
    ],
)
def test_an_address_is_host_and_port(word: str, address: Address | None) -> None:
    assert parse(["--listen", word]).listen == address
    assert parse(["--listen", str(address or "none")]).listen == address


@pytest.mark.parametrize(
    "words",
    [
        ["--listen", "9476"],
        ["--listen", ":9476"],
        ["--listen", "127.0.0.1:"],
        ["--listen", "127.0.0.1:65536"],
        ["--listen", "127.0.0.1:-1"],
        ["--container-metrics", "-1"],
        ["--container-metrics", "10001"],
        ["--container-metrics", "many"],
        ["--tls-cert", "cert.pem"],
        ["--tls-key", "key.pem"],
    ],
)
def test_what_is_none_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_each_socket_can_be_left_out() -> None:
    settings = parse(["--pod-resources-socket", "none", "--kubelet-pod-resources", "none"])
    assert (settings.pod_resources_socket, settings.kubelet_pod_resources) == (None, None)
    assert parse(["--pod-resources-socket", "/run/a"]).pod_resources_socket == Path("/run/a")
