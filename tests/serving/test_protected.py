"""HTTPS with clients' certificates, and rate limits: who may ask, how often, and what the others are told."""

import shutil
import socket
import ssl
import stat

import httpx
import pytest
from serving_job import TOKEN, Served

from tallystick.network.certificates import write_test_certificates

PER_SECOND = 5


@pytest.fixture(scope="module")
def protected(trained, tmp_path_factory):
    """Serve HTTPS to clients that show a certificate of the label party's CA and a token; five requests a second."""
    job, _ = trained
    issued, home = tmp_path_factory.mktemp("clients"), job.home("bank")
    write_test_certificates(issued, ["localhost", "teller"])
    write_test_certificates(issued / "others", ["stranger"])
    for name in ("localhost.pem", "localhost.key", "ca.pem"):
        shutil.copy(issued / name, home / f"clients-{name}")
    tls = {"certificate": "clients-localhost.pem", "key": "clients-localhost.key", "client_ca": "clients-ca.pem"}
    served = Served(job, way="key", tls=tls, requests_per_second=PER_SECOND)
    (home / "tokens").chmod(0o644)
    served.start("bank")

    def client(certificate=None, token=TOKEN):
        context = ssl.create_default_context(cafile=issued / "ca.pem")
        if certificate is not None:
            context.load_cert_chain(issued / f"{certificate}.pem", issued / f"{certificate}.key")
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"https://localhost:{served.port}", verify=context, headers=headers, timeout=20)

    served.client = client("teller")
    yield served.until_ready("ready, by own columns alone\n"), client
    served.close()


def test_a_client_with_a_certificate_of_the_ca_and_a_token_is_answered_over_tls(protected):
    served, client = protected
    assert served.client.get("/healthz").status_code == 200
    with client("teller", token="wrong-but-of-some-length") as other:
        assert other.post("/v1/score", json={"rows": [{"id": "x"}]}).status_code == 401


@pytest.mark.parametrize("certificate", [None, "others/stranger"])
def test_a_client_without_one_gets_nothing(protected, certificate):
    _, client = protected
    with client(certificate) as stranger, pytest.raises(httpx.TransportError):
        stranger.get("/healthz")


def test_tls_of_before_gets_nothing(protected):
    served, _ = protected
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("localhost", served.port), timeout=20) as link, pytest.raises(ssl.SSLError):
        context.wrap_socket(link)


def test_plain_http_gets_nothing(protected):
    served, _ = protected
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{served.port}/healthz", timeout=20)


def test_more_requests_than_agreed_are_told_when_to_come_again(protected, trained):
    served, _ = protected
    key = trained[1]["id"][0]
    statuses = [served.ask({"id": key}) for _ in range(6 * PER_SECOND)]
    assert {response.status_code for response in statuses} == {200, 429}
    refused = next(response for response in statuses if response.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["content-type"] == "application/problem+json"
    assert "serving.requests_per_second" in refused.json()["detail"]


def test_a_file_of_tokens_that_others_can_read_is_said_so(protected, trained):
    served, job = protected[0], trained[0]
    assert stat.S_IMODE((job.home("bank") / "tokens").stat().st_mode) == 0o644
    assert any("chmod 600" in line for line in [*served.running["bank"].said, *map(str, served.running["bank"].events)])
