"""TLS, client certificates, users and headers, from a file in the format that Prometheus's exporters share.

The file is read again when it, a certificate or a key changes. One that cannot be used any more leaves
the last good one in force and is logged once.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from gpuwhy.config import MAX_FILE_BYTES, ConfigError, pip_install
from gpuwhy.exporter.users import Users

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0
TRY_AGAIN_S = 10.0  # a reading that failed: what was wrong may pass without a change of the file
PATIENCE_S = 1.0
# Each step doubles the time of a check; 14 takes about a second.
MAX_COST = 14

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# Go's names; those of TLS 1.3 cannot be chosen there either, and are always on.
_CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for go, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305", "CHACHA20-POLY1305"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
} | dict.fromkeys(("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"), "")
# The format's, with the values that it takes; none listed: any.
_HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
# Keys of the format that are not served, by what to do instead.
_NOT_SERVED = {
    "rate_limit": "not served, since limits are built in; take it out",
    "tls_server_config.cert": "not served; write the certificate to a file and name it by cert_file",
    "tls_server_config.key": "not served; write the key to a file and name it by key_file",
    "tls_server_config.client_ca": "not served; write the certificates to a file and name it by client_ca_file",
    "tls_server_config.curve_preferences": "not served, since Python's TLS cannot order curves; take it out",
}
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True, slots=True)
class Settings:
    """One good reading of the file."""

    context: ssl.SSLContext | None = None
    allowed_sans: frozenset[str] = frozenset()
    users: Users | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def remembering(self, before: Settings) -> Settings:
        """These, without forgetting the passwords that were checked, where users are what they were."""
        if self.users is None or before.users is None or not self.users.same_as(before.users):
            return self
        return replace(self, users=before.users)

    @property
    def needs_proof(self) -> bool:
        """Whether a client has to show a certificate or a password."""
        return bool(self.locks - {"TLS"})

    @property
    def locks(self) -> frozenset[str]:
        """What keeps strangers out, in the words of messages."""
        verified = self.context is not None and self.context.verify_mode == ssl.CERT_REQUIRED
        each = {
            "TLS": self.context is not None,
            "client certificates": verified,
            "users": self.users is not None,
        }
        return frozenset(name for name, there in each.items() if there)


class WebConfig:
    """The file's settings, as new as a second ago.

    Raises:
        ConfigError: the file cannot be used at the start; the message names key, value and remedy.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._tried_s = self._looked_s
        self._stuck = False
        self._complaint = ""
        reader = _Reader(path)
        try:
            self._settings = reader.read()
        finally:
            self._seen = _fingerprint(reader.files)
            self._files = tuple(reader.files)
        reader.warn_of_open_files()

    def current(self) -> Settings:
        """The last good settings, as the files were ``LOOK_AGAIN_S`` ago or later; never raises.

        Whoever asks while they are read again waits for that, so nobody gets older settings than another got;
        but no longer than ``PATIENCE_S``, as when a file is on a mount that hangs, and then nobody waits again
        until that reading has ended.
        """
        if time.monotonic() - self._looked_s < LOOK_AGAIN_S:
            return self._settings
        if not self._lock.acquire(timeout=0 if self._stuck else PATIENCE_S):
            self._stuck = True
            return self._settings
        try:
            began_s = time.monotonic()
            if began_s - self._looked_s >= LOOK_AGAIN_S:
                self._look()
                self._looked_s = began_s
        except Exception:
            log.exception("%s was not read again; the settings from before stay in force", self._path)
            self._looked_s = time.monotonic() + TRY_AGAIN_S
        finally:
            self._stuck = False
            self._lock.release()
        return self._settings

    def _look(self) -> None:
        seen = _fingerprint(self._files)
        again = bool(self._complaint) and time.monotonic() - self._tried_s >= TRY_AGAIN_S
        if seen == self._seen and not again:
            return
        self._tried_s = time.monotonic()
        reader = _Reader(self._path)
        try:
            settings = reader.read()
            self._refuse_fewer_locks(settings)
        except ConfigError as error:
            if str(error) != self._complaint:
                log.error("%s; the settings from before stay in force", error)  # noqa: TRY400 - no traceback
            self._complaint = str(error)
            # What the bad file names is watched along with what the good one named.
            self._files = tuple(dict.fromkeys((*self._files, *reader.files)))
        else:
            self._settings = settings.remembering(self._settings)
            self._complaint = ""
            self._files = tuple(reader.files)
            reader.warn_of_open_files()
            log.info("%s was read again", self._path)
        # Of the moment before the reading, so that a change during it is seen at the next look.
        self._seen = seen if _same_files(seen, self._files) else _fingerprint(self._files)

    def _refuse_fewer_locks(self, settings: Settings) -> None:
        """A file that is empty, or half written, for a moment opens no door."""
        gone = " and no ".join(sorted(self._settings.locks - settings.locks))
        if gone:
            raise ConfigError([f"{self._path} has no {gone} any more: restart gpuwhy if that is meant"])


_Stamp = tuple[Path, int, int, int, int]


def _fingerprint(files: tuple[Path, ...] | list[Path]) -> tuple[_Stamp, ...]:
    return tuple(_stamp(path) for path in files)


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return path, 0, 0, 0, 0
    # A right that was given shows in ctime alone.
    return path, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _same_files(seen: tuple[_Stamp, ...], files: tuple[Path, ...]) -> bool:
    return tuple(path for path, *_ in seen) == files


class _Reader:
    """One reading; ``files`` are those that it depends on, even when it fails."""

    def __init__(self, path: Path) -> None:
        self.files = [path]
        self._path = path
        self._secret: list[Path] = []

    def read(self) -> Settings:
        whole = self._load()
        self._known(whole, "", ("tls_server_config", "http_server_config", "basic_auth_users"))
        context, sans = self._tls(self._section(whole, "tls_server_config"))
        users = self._users(self._section(whole, "basic_auth_users"))
        return Settings(context, sans, users, self._headers(self._section(whole, "http_server_config")))

    def warn_of_open_files(self) -> None:
        for path in self._secret:
            if _mode(path) & 0o004:
                log.warning("%s can be read by every user of this host; chmod o-r keeps it private", path)

    def _bad(self, key: str, value: object, remedy: str) -> ConfigError:
        return ConfigError([f"{self._path}: {key}{'' if value is None else f' is {value!r}'}: {remedy}"])

    def _load(self) -> dict[str, Any]:
        try:
            with _regular(self._path) as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            remedy = _file_remedy(error)
            raise ConfigError([f"http.web_config_file is {str(self._path)!r}: {remedy}"]) from error
        if len(content) > MAX_FILE_BYTES:
            raise self._bad("the file", None, f"larger than {MAX_FILE_BYTES} bytes; shorten it")
        try:
            whole = yaml.safe_load(content)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            where = "the file" if mark is None else f"line {mark.line + 1}"
            raise self._bad(where, None, "is not YAML; correct it there") from error
        if whole is None:
            return {}
        return self._mapping("the file", whole)

    def _mapping(self, key: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            # The value may hold hashes, so it is not shown.
            raise self._bad(key, None, "write names with values, as in name: value")
        return value

    def _section(self, whole: dict[str, Any], key: str) -> dict[str, Any]:
        value = whole.get(key)
        return {} if value is None else self._mapping(key, value)

    def _known(self, section: dict[str, Any], prefix: str, names: tuple[str, ...]) -> None:
        for name in section:
            if name not in names:
                unknown = f"not known; take it out, or write one of {', '.join(names)}"
                raise self._bad(prefix + name, None, _NOT_SERVED.get(prefix + name, unknown))

    def _text(self, section: dict[str, Any], prefix: str, key: str) -> str:
        value = section.get(key)
        if value is not None and not isinstance(value, str):
            raise self._bad(
                prefix + key, value, "write a text, in quotes where YAML takes it for something else"
            )
        return value or ""

    def _one_of(self, section: dict[str, Any], prefix: str, key: str, names: Mapping[str, Any]) -> Any:
        value = self._text(section, prefix, key) or next(iter(names))
        if value not in names:
            raise self._bad(prefix + key, value, f"write one of {', '.join(names)}")
        return names[value]

    def _texts(self, section: dict[str, Any], prefix: str, key: str) -> list[str]:
        value = section.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._bad(prefix + key, value, "write a list of texts")
        return value

    def _boolean(self, section: dict[str, Any], prefix: str, key: str) -> bool:
        value = section.get(key, True)
        if not isinstance(value, bool):
            raise self._bad(prefix + key, value, "write true or false")
        return value

    def _file(self, section: dict[str, Any], prefix: str, key: str) -> Path | None:
        value = self._text(section, prefix, key)
        if not value:
            return None
        path = self._path.parent / value
        self.files.append(path)
        try:
            _regular(path).close()
        except (OSError, ValueError) as error:
            raise self._bad(prefix + key, value, _file_remedy(error)) from error
        return path

    def _tls(self, section: dict[str, Any]) -> tuple[ssl.SSLContext | None, frozenset[str]]:
        if not section:
            return None, frozenset()
        at = "tls_server_config."
        names = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans")
        more = ("min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites")
        self._known(section, at, (*names, *more))
        certificate, key = self._file(section, at, "cert_file"), self._file(section, at, "key_file")
        if certificate is None or key is None:
            missing = "cert_file" if certificate is None else "key_file"
            raise self._bad(at + missing, "", "name a PEM file, or take tls_server_config out for plain HTTP")
        self._secret.append(key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._one_of(section, at, "min_version", _VERSIONS)
        context.maximum_version = self._one_of(section, at, "max_version", dict(reversed(_VERSIONS.items())))
        if context.minimum_version > context.maximum_version:
            raise self._bad(at + "min_version", section["min_version"], "raise max_version or lower this")
        if self._boolean(section, at, "prefer_server_cipher_suites"):
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        self._set_ciphers(context, section, at)
        try:
            # An empty password, since OpenSSL else asks the terminal for that of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            remedy = (
                "not a certificate with its own unencrypted key in PEM; check that key_file belongs to it"
            )
            raise self._bad(at + "cert_file", section["cert_file"], remedy) from error
        return context, self._client_certificates(context, section, at)

    def _set_ciphers(self, context: ssl.SSLContext, section: dict[str, Any], at: str) -> None:
        chosen = self._texts(section, at, "cipher_suites")
        for name in chosen:
            if name not in _CIPHERS:
                raise self._bad(at + "cipher_suites", name, f"write some of {', '.join(_CIPHERS)}")
        old = [_CIPHERS[name] for name in chosen if _CIPHERS[name]]
        if old:
            context.set_ciphers(":".join(old))

    def _client_certificates(
        self, context: ssl.SSLContext, section: dict[str, Any], at: str
    ) -> frozenset[str]:
        mode = self._one_of(section, at, "client_auth_type", _CLIENT_AUTH)
        authority = self._file(section, at, "client_ca_file")
        kind = section.get("client_auth_type") or "NoClientCert"
        if authority is None and mode != ssl.CERT_NONE:
            raise self._bad(at + "client_auth_type", kind, "needs client_ca_file to verify against")
        if authority is not None:
            if mode == ssl.CERT_NONE:
                raise self._bad(
                    at + "client_auth_type", kind, "with client_ca_file write RequireAndVerifyClientCert"
                )
            try:
                context.load_verify_locations(authority)
            except (ssl.SSLError, OSError, ValueError) as error:
                remedy = "holds no certificates in PEM; name those of the authority"
                raise self._bad(at + "client_ca_file", section["client_ca_file"], remedy) from error
            context.verify_mode = mode
        sans = frozenset(map(spelled, self._texts(section, at, "client_allowed_sans")))
        if not sans and "client_allowed_sans" in section:
            remedy = "it names nobody; list names, or take it out to let in every verified certificate"
            raise self._bad(at + "client_allowed_sans", section["client_allowed_sans"], remedy)
        if sans and mode != ssl.CERT_REQUIRED:
            remedy = "with client_allowed_sans write RequireAndVerifyClientCert"
            raise self._bad(at + "client_auth_type", kind, remedy)
        return sans

    def _users(self, section: dict[str, Any]) -> Users | None:
        if not section:
            return None
        for name, value in section.items():
            key = f"basic_auth_users.{name!r}"
            found = _BCRYPT.fullmatch(value) if isinstance(value, str) else None
            if not name or ":" in name:
                raise self._bad(key, None, "a user's name cannot be empty or hold a colon; rename it")
            # A hash is a secret of sorts, so it is not shown.
            if found is None:
                raise self._bad(key, None, "not a bcrypt hash; make one with htpasswd -nBC 10 NAME")
            if not 4 <= int(found[1]) <= MAX_COST:
                raise self._bad(
                    key, None, f"has cost {found[1]}; make a hash with a cost from 4 to {MAX_COST}"
                )
        self._secret.append(self._path)
        try:
            return Users({name.encode(): value.encode() for name, value in section.items()})
        except ImportError as error:
            raise self._bad(
                "basic_auth_users", None, f"needs the Python package bcrypt: {pip_install('bcrypt')}"
            ) from error

    def _headers(self, section: dict[str, Any]) -> Mapping[str, str]:
        at = "http_server_config."
        self._known(section, at, ("http2", "headers"))
        self._boolean(section, at, "http2")
        headers = self._mapping(at + "headers", section.get("headers") or {})
        self._known(headers, at + "headers.", tuple(_HEADERS))
        for name in headers:
            value = self._text(headers, at + "headers.", name)
            if not value.isascii() or not value.isprintable():
                raise self._bad(f"{at}headers.{name}", value, "write printable ASCII on one line")
            if value and _HEADERS[name] and value.lower() not in _HEADERS[name]:
                raise self._bad(f"{at}headers.{name}", value, f"write one of {', '.join(_HEADERS[name])}")
        return {name: value for name, value in headers.items() if value}


def spelled(name: str) -> str:
    """An IP address in its one short spelling, any other name as it is."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _regular(path: Path) -> BinaryIO:
    """A file that is open for reading; what could hang, as a FIFO does, is refused."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(path)
    return file


def _file_remedy(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return "permission denied; let the user that gpuwhy runs as read it (chgrp and chmod 640)"
    said = error.strerror if isinstance(error, OSError) else "not a file"
    return f"{said}; name a file that exists, relative to this one's folder"


def load(path: str) -> WebConfig | None:
    """The settings of a file, None for no path. Raises as ``WebConfig`` does."""
    return WebConfig(Path(path)) if path else None


NO_SETTINGS = Settings()
