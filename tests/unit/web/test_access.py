"""Where the API server is and who we are: service account and kubeconfig, and what is refused in one."""

import base64
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuguard.errors import ActionDeferred, ActionRefused, ConfigInvalid
from gpuguard.web.access import Access, found, from_kubeconfig, in_cluster

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
YAML = """\
apiVersion: v1
kind: Config
current-context: here
clusters:
- name: c
  cluster: {server: "https://api.example:6443", certificate-authority: pki/ca.crt}
users:
- name: u
  user: {tokenFile: token}
contexts:
- name: here
  context: {cluster: c, user: u, namespace: gpus}
- name: other
  context: {cluster: gone, user: u}
"""


def written(folder: Path, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    """A kubeconfig in JSON."""
    path = folder / "config"
    named = {
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(named))
    return path


def account(folder: Path, token: str = "first") -> Path:
    for name, text in (("token", token), ("ca.crt", "pem"), ("namespace", "gpuguard\n")):
        (folder / name).write_text(text)
    return folder


def test_a_pod_has_its_service_account(tmp_path: Path) -> None:
    access = in_cluster(IN_POD, account(tmp_path))
    assert (access.server, access.namespace) == ("https://10.96.0.1:443", "gpuguard")
    assert access.ca_file == str(tmp_path / "ca.crt")
    assert access.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    assert access.headers() == {"Authorization": "Bearer second"}, "renewed on disk"
    (tmp_path / "token").unlink()
    with pytest.raises(ActionDeferred):
        access.headers()
    (tmp_path / "token").write_text("two words")
    with pytest.raises(ActionRefused):
        access.headers()
    assert (
        in_cluster({**IN_POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account(tmp_path)).server
        == "https://[fd00::1]:443"
    )


def test_a_pod_without_a_service_account_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="automountServiceAccountToken"):
        in_cluster(IN_POD, tmp_path)
    with pytest.raises(ConfigInvalid, match="KUBERNETES_SERVICE_HOST"):
        in_cluster({**IN_POD, "KUBERNETES_SERVICE_PORT": "x"}, tmp_path)


def test_yaml_and_paths_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(YAML)
    (tmp_path / "token").write_text("t")
    access = from_kubeconfig(path)
    assert (access.server, access.namespace) == ("https://api.example:6443", "gpus")
    assert (access.ca_file, access.token_file) == (str(tmp_path / "pki/ca.crt"), str(tmp_path / "token"))
    with pytest.raises(ConfigInvalid, match="names cluster 'gone'"):
        from_kubeconfig(path, "other")
    with pytest.raises(ConfigInvalid, match="no context 'nowhere'; there are here, other"):
        from_kubeconfig(path, "nowhere")


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        ({"server": "http://api.example"}, None, "https://"),
        ({"server": "nonsense"}, None, "no address"),
        ({"insecure-skip-tls-verify": True}, None, "certificate-authority-data"),
        ({"proxy-url": "http://p"}, None, "proxy-url"),
        ({"certificate-authority-data": "%"}, None, "not PEM"),
        ({}, {"exec": {"command": "aws"}}, "runs no foreign program"),
        ({}, {"auth-provider": {"name": "gcp"}}, "runs no foreign program"),
        ({}, {"username": "u", "password": "p"}, "use a token"),
        ({}, {"token": "t", "as": "root"}, "impersonation"),
        ({}, {"client-certificate": "x"}, "belong together"),
    ],
)
def test_what_is_refused_names_the_next_step(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any] | None, words: str
) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        from_kubeconfig(written(tmp_path, cluster, user))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as failed:
        from_kubeconfig(written(tmp_path, {"proxy-url": "x", "insecure-skip-tls-verify": True}, {"exec": {}}))
    assert len(failed.value.mistakes) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "a: b: c", "clusters: 3", "\x00"])
def test_what_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigInvalid):
        from_kubeconfig(path)
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        from_kubeconfig(tmp_path / "none")


def test_a_plain_server_on_this_machine_is_taken(tmp_path: Path) -> None:
    assert from_kubeconfig(written(tmp_path, {"server": "http://127.0.0.1:8001"})).server == "http://127.0.0.1:8001"


def test_which_one_is_meant(tmp_path: Path) -> None:
    path, other = str(written(tmp_path)), account(tmp_path)
    assert found(path, IN_POD, folder=other).origin == path
    assert "service account" in found("", {**IN_POD, "KUBECONFIG": path}, folder=other).origin
    assert found("", {"KUBECONFIG": f"{path}:/nonexistent"}).origin == path
    with pytest.raises(ConfigInvalid, match="set `kubeconfig`"):
        found("", {})


def test_a_client_certificate_is_shown_from_memory_or_a_file(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made = [*command, "-subj", "/CN=gpuguard", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is missing")
    encoded = {
        f"client-{name}-data": base64.b64encode(path.read_bytes()).decode()
        for name, path in (("certificate", certificate), ("key", key))
    }
    authority = {"certificate-authority-data": base64.b64encode(certificate.read_bytes()).decode()}
    access = from_kubeconfig(written(tmp_path, authority, encoded))
    assert "PRIVATE KEY" in access.key_data
    context = access.context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert [dict(part[0] for part in ca["subject"])["commonName"] for ca in context.get_ca_certs()] == ["gpuguard"]
    files = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    assert from_kubeconfig(written(tmp_path, authority, files)).context() is not None


def test_a_file_that_is_gone_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="No such file"):
        Access(server="https://x", origin="test", ca_file="/nonexistent/ca").context()
