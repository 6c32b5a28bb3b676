"""Where Kubernetes' API server is and who we are to it: the pod's service account, or a kubeconfig.

A service account's token is renewed on disk about every hour, and so may certificates be: they are read anew for each
question and each connection.

Reads   /var/run/secrets/kubernetes.io/serviceaccount/{token,ca.crt,namespace}; a kubeconfig
Source  https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/; k8s.io/client-go/tools/clientcmd/api/v1
"""

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuguard.errors import ActionDeferred, ActionRefused, ConfigInvalid
from gpuguard.web.client import on_loopback, parse_address

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A kubeconfig of a hundred clusters has some 200 kB; a token has 1 to 2 kB.
FILE_LIMIT: Final = 1 << 20


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How one API server is reached. `origin` says where that was learned. Empty texts: not used.

    `*_data` hold PEM, `*_file` are paths that are read when needed.
    """

    server: str
    origin: str
    server_name: str = ""
    ca_file: str = ""
    ca_data: str = ""
    token: str = ""
    token_file: str = ""
    certificate_file: str = ""
    certificate_data: str = ""
    key_file: str = ""
    key_data: str = ""
    namespace: str = ""

    def headers(self) -> dict[str, str]:
        """Who we are, for one question.

        Raises  ActionDeferred while the token's file cannot be read: it may be in the middle of its renewal
        """
        token = self.token
        if self.token_file:
            try:
                token = _text(Path(self.token_file)).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ActionDeferred(f"the token {self.token_file} cannot be read: {error}", 5.0) from error
        if not token:
            return {}
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ActionRefused(f"what {self.origin} gives is no bearer token")
        return {"Authorization": f"Bearer {token}"}

    def context(self) -> ssl.SSLContext:
        """TLS as it is spoken with this server: its authority alone is trusted, and our certificate shown.

        Raises  OSError, among them ssl.SSLError, when a file cannot be read
        """
        if self.ca_file or self.ca_data:
            context = ssl.create_default_context(cafile=self.ca_file or None, cadata=self.ca_data or None)
        else:
            context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate_file or self.certificate_data:
            _show_certificate(context, self)
        return context


def found(kubeconfig: str, environ: Mapping[str, str], *, context: str = "", folder: Path = SERVICE_ACCOUNT) -> Access:
    """The access that a site means: the kubeconfig it names, else the pod's service account, else $KUBECONFIG.

    Raises  ConfigInvalid with the next step
    """
    if kubeconfig:
        return from_kubeconfig(Path(kubeconfig), context)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ, folder)
    if environ.get("KUBECONFIG"):
        return from_kubeconfig(Path(environ["KUBECONFIG"].split(os.pathsep)[0]), context)
    raise ConfigInvalid(
        ("no way to Kubernetes' API server: run in a pod with a service account, or set `kubeconfig` to a file",)
    )


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """The access of the pod we run in.

    Raises  ConfigInvalid when this is no pod, or one without a service account
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise ConfigInvalid(("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not name an API server",))
    missing = [name for name in ("token", "ca.crt") if not (folder / name).is_file()]
    if missing:
        raise ConfigInvalid(
            (f"{folder} has no {' and no '.join(missing)}; set automountServiceAccountToken: true in the pod",)
        )
    try:
        namespace = _text(folder / "namespace").strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""  # it is told for convenience, and whoever needs one has a setting
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        origin=f"the service account in {folder}",
        ca_file=str(folder / "ca.crt"),
        token_file=str(folder / "token"),
        namespace=namespace,
    )


def from_kubeconfig(path: Path, context: str = "") -> Access:
    """The access that a kubeconfig's `context` describes, by itself its current one. JSON or YAML.

    Raises  ConfigInvalid with every mistake; what would run a program or leave the server unproven is refused
    """
    where = str(path)
    config = _parsed(path)
    chosen = context or config.current_context
    inner = next((c.context for c in config.contexts if c.name == chosen), None)
    if inner is None:
        known = ", ".join(c.name for c in config.contexts) or "none"
        raise ConfigInvalid((f"{where}: no context {chosen!r}; there are {known[:200]}",))
    cluster = next((c.cluster for c in config.clusters if c.name == inner.cluster), None)
    user = next((u.user for u in config.users if u.name == inner.user), None)
    mistakes = [
        f"{where}: context {chosen!r} names {kind} {name!r}, which is not there"
        for kind, name, thing in (("cluster", inner.cluster, cluster), ("user", inner.user, user))
        if thing is None
    ]
    if cluster is None or user is None:
        raise ConfigInvalid(mistakes)
    mistakes += [f"{where}: cluster {inner.cluster!r}: {text}" for text in _cluster_mistakes(cluster)]
    mistakes += [f"{where}: user {inner.user!r}: {text}" for text in _user_mistakes(user)]
    plain: dict[str, str] = {}
    for name, value in (
        ("certificate-authority-data", cluster.certificate_authority_data),
        ("client-certificate-data", user.client_certificate_data),
        ("client-key-data", user.client_key_data),
    ):
        try:
            plain[name] = base64.b64decode(value, validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError):
            mistakes.append(f"{where}: {name} is not PEM in base64")
    if mistakes:
        raise ConfigInvalid(mistakes)

    def beside(name: str) -> str:
        return str(path.resolve().parent / name) if name else ""

    return Access(
        server=cluster.server,
        origin=where,
        server_name=cluster.tls_server_name,
        ca_file="" if plain["certificate-authority-data"] else beside(cluster.certificate_authority),
        ca_data=plain["certificate-authority-data"],
        # A token in the file rules over one beside it only where there is no file (client-go, getUserIdentification).
        token="" if user.token_file else user.token,
        token_file=beside(user.token_file),
        certificate_file="" if plain["client-certificate-data"] else beside(user.client_certificate),
        certificate_data=plain["client-certificate-data"],
        key_file="" if plain["client-key-data"] else beside(user.client_key),
        key_data=plain["client-key-data"],
        namespace=inner.namespace,
    )


class _Cluster(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""


class _User(msgspec.Struct, frozen=True, kw_only=True):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = msgspec.field(default="", name="client-certificate")
    client_certificate_data: str = msgspec.field(default="", name="client-certificate-data")
    client_key: str = msgspec.field(default="", name="client-key")
    client_key_data: str = msgspec.field(default="", name="client-key-data")
    username: str = ""
    act_as: str = msgspec.field(default="", name="as")
    exec: Any = None  # Any: refused, whatever it holds
    auth_provider: Any = msgspec.field(default=None, name="auth-provider")  # Any: likewise


class _Inner(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedContext(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    context: _Inner


class _NamedCluster(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    user: _User


class _Kubeconfig(msgspec.Struct, frozen=True, kw_only=True):
    current_context: str = msgspec.field(default="", name="current-context")
    contexts: tuple[_NamedContext, ...] = ()
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()


def _parsed(path: Path) -> _Kubeconfig:
    try:
        text = _text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid((f"{path}: cannot be read as a kubeconfig: {error}",)) from error
    try:
        if text.lstrip().startswith("{"):
            return msgspec.json.decode(text, type=_Kubeconfig)
        # PyYAML is loaded here alone: a pod has a service account and never pays for it.
        return msgspec.yaml.decode(text, type=_Kubeconfig)
    except ImportError as error:
        raise ConfigInvalid(
            (f"{path}: reading YAML needs PyYAML; install it, or write it with `kubectl config view --raw -o json`",)
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigInvalid((f"{path}: is no kubeconfig: {' '.join(str(error).split())[:300]}",)) from error


def _cluster_mistakes(cluster: _Cluster) -> list[str]:
    mistakes = []
    try:
        secure = parse_address(cluster.server)[0]
        if not secure and not on_loopback(cluster.server):
            mistakes.append("server: must begin with https:// unless it is on this machine")
    except ConfigInvalid as error:
        mistakes.append(f"server: {error}")
    if cluster.insecure_skip_tls_verify:
        mistakes.append(
            "insecure-skip-tls-verify is refused: anybody could then tell us what to do; set certificate-authority-data"
        )
    if cluster.proxy_url:
        mistakes.append("proxy-url is not supported; name a server that this node reaches")
    return mistakes


def _user_mistakes(user: _User) -> list[str]:
    mistakes = []
    if user.exec is not None or user.auth_provider is not None:
        mistakes.append(
            "exec and auth-provider are refused: gpuguard runs no foreign program with its rights; make a service "
            "account and a kubeconfig with its token or a client certificate"
        )
    if user.username:
        mistakes.append("username and password are no longer taken by any API server; use a token")
    if user.act_as:
        mistakes.append("`as` (impersonation) is not supported; give gpuguard an identity of its own")
    certificate = user.client_certificate or user.client_certificate_data
    if bool(certificate) != bool(user.client_key or user.client_key_data):
        mistakes.append("client-certificate and client-key belong together; one of them is missing")
    return mistakes


def _show_certificate(context: ssl.SSLContext, access: Access) -> None:
    """The context has our certificate. OpenSSL takes files alone; what we hold as text it reads from memory."""
    opened: list[int] = []
    try:

        def path_to(file: str, text: str) -> str:
            if not text:
                return file
            descriptor = os.memfd_create("gpuguard", os.MFD_CLOEXEC)
            opened.append(descriptor)
            os.write(descriptor, text.encode("ascii"))
            return f"/proc/self/fd/{descriptor}"

        context.load_cert_chain(
            path_to(access.certificate_file, access.certificate_data),
            path_to(access.key_file, access.key_data),
            password="",  # without one, OpenSSL would ask the terminal for that of an encrypted key
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(FILE_LIMIT + 1)
    if len(text) > FILE_LIMIT:
        raise OSError(f"{path} is larger than {FILE_LIMIT} bytes")
    return text.decode("utf-8")
