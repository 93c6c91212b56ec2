"""known_hosts lines as ssh-keygen writes them, and what they say of a key."""

import base64

import pytest

from orchestrator.connection.knownhosts import Verdict, entry, fingerprint, host_name, judge, key_types, parse

ED1 = "AAAAC3NzaC1lZDI1NTE5AAAAILv+aUyIpK1qItxJF0597kY26KRHMac8O3w8n2Bl3ifN"
ED2 = "AAAAC3NzaC1lZDI1NTE5AAAAIBNPYK6XRxvREr9PheCO3zk/AYQts9TC9++ZVeU68xvc"
EC3 = (
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBHfM0Q2vv1XhrKnGg3v8KbhyUv5x3kc7LAu2RFYvn3i5"
    "VDhpe3p3lHO0DOeRqv9AbZpaJZqbn/tJtKXCDdyHjhk="
)
HASHED = f"""\
|1|1nR2PgwS7bEvN6jWQyQQabIsZAs=|/KkSTC+8OPEpRR7sPppZhkGCUSM= ssh-ed25519 {ED1}
|1|CGpJYtL4W4SvUickYru8/gF46jI=|SA1IiNu18+3gXuUfrnMhAHBB1Vo= ssh-ed25519 {ED1}
"""


def verdict(text: str, name: str, key: str = ED1, kind: str = "ssh-ed25519") -> Verdict:
    return judge(parse(text, "kh"), name, kind, base64.b64decode(key))[0]


def test_a_fingerprint_is_as_ssh_keygen_prints_it():
    assert fingerprint(base64.b64decode(ED1)) == "SHA256:e+cQTxw0XDIxPcvBt6GRs1aM3hR8Xxqubm5aFwno3oc"


def test_a_name_has_its_port_unless_it_is_22():
    assert host_name("10.1.2.6", 22) == "10.1.2.6"
    assert host_name("10.1.2.6", 2222) == "[10.1.2.6]:2222"


@pytest.mark.parametrize("name", ["10.1.2.6", "[10.1.2.6]:2222"])
def test_hashed_names_are_found(name: str):
    assert verdict(HASHED, name) is Verdict.KNOWN
    assert verdict(HASHED, name, ED2) is Verdict.CHANGED


def test_another_host_or_port_is_unknown():
    assert verdict(HASHED, "10.1.2.7") is Verdict.UNKNOWN
    assert verdict(HASHED, "[10.1.2.6]:2200") is Verdict.UNKNOWN
    assert verdict(f"[10.1.2.6]:2222 ssh-ed25519 {ED1}", "10.1.2.6") is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("names", "name", "wanted"),
    [
        ("a,10.1.2.6", "10.1.2.6", Verdict.KNOWN),
        ("*.example.org", "pve1.example.org", Verdict.KNOWN),
        ("PVE1.example.org", "pve1.Example.org", Verdict.KNOWN),
        ("*.example.org,!pve1.example.org", "pve1.example.org", Verdict.UNKNOWN),
        ("!pve1.example.org,*.example.org", "pve1.example.org", Verdict.UNKNOWN),
        ("10.1.2.?", "10.1.2.6", Verdict.KNOWN),
        ("[10.1.2.6]:*", "[10.1.2.6]:2222", Verdict.KNOWN),
        ("10.1.2", "10.1.2.6", Verdict.UNKNOWN),
        ("|1|bad|bad", "10.1.2.6", Verdict.UNKNOWN),
    ],
)
def test_names_are_patterns(names: str, name: str, wanted: Verdict):
    assert verdict(f"{names} ssh-ed25519 {ED1}", name) is wanted


def test_a_changed_key_names_the_line_of_its_type():
    keys = parse(f"# note\n\nh ecdsa-sha2-nistp256 {EC3}\nh ssh-ed25519 {ED1}\n", "kh")
    found, line = judge(keys, "h", "ssh-ed25519", base64.b64decode(ED2))
    assert found is Verdict.CHANGED
    assert line is not None
    assert (line.path, line.line) == ("kh", 4)


def test_a_key_of_another_type_than_those_listed_has_changed():
    assert verdict(f"h ssh-ed25519 {ED1}", "h", EC3, "ecdsa-sha2-nistp256") is Verdict.CHANGED


def test_one_of_several_listed_keys_is_enough():
    assert verdict(f"h ssh-ed25519 {ED2}\nh ssh-ed25519 {ED1}", "h") is Verdict.KNOWN


def test_a_revoked_key_is_refused_even_if_it_is_listed_too():
    assert verdict(f"h ssh-ed25519 {ED1}\n@revoked * ssh-ed25519 {ED1}", "h") is Verdict.REVOKED
    assert verdict(f"h ssh-ed25519 {ED1}\n@revoked * ssh-ed25519 {ED2}", "h") is Verdict.KNOWN


def test_a_certificate_authority_is_no_host_key():
    assert verdict(f"@cert-authority h ssh-ed25519 {ED1}", "h") is Verdict.UNKNOWN


@pytest.mark.parametrize("text", ["", "h", "h ssh-ed25519", "h ssh-ed25519 %%%", "# h ssh-ed25519 x"])
def test_a_line_that_is_none_is_passed_over(text: str):
    assert parse(text, "kh") == ()


def test_the_listed_types_are_asked_for_first():
    keys = parse(f"h ecdsa-sha2-nistp256 {EC3}\nh ssh-ed25519 {ED1}\n@revoked h ssh-rsa {ED2}", "kh")
    assert key_types(keys, "h") == ["ecdsa-sha2-nistp256", "ssh-ed25519"]
    assert key_types(keys, "other") == []


def test_an_added_line_is_read_back():
    line = entry("[h]:2222", "ssh-ed25519", base64.b64decode(ED1))
    assert verdict(line, "[h]:2222") is Verdict.KNOWN
