"""The container: what is built, as whom it runs, and that its files agree with each other."""

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.conftest import ROOT
from free_port import free_port
from http_handler import Handler, serving
from pricekeeper.settings import (
    DATA_DIR,
    PROVISIONING_KEY,
    SETTINGS,
    STORE,
    TRUSTED_PROXIES,
    DynamoDbLocation,
    ListenAddress,
    SqliteLocation,
    parse_store_location,
    read_settings,
)

KNOWN = {setting.name for setting in SETTINGS}
FOLDER = "/data"
PORT = "8080"
METRICS_PORT = "9464"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, in order."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


def stages() -> list[list[tuple[str, str]]]:
    """The same, by stage."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def final(word: str) -> list[str]:
    """What the image that is shipped says with that word."""
    return [rest for name, rest in stages()[-1] if name == word]


def environment() -> dict[str, str]:
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', final("ENV")[0]))


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return document


def ours() -> dict[str, dict[str, Any]]:
    """The services of the compose file that run our image."""
    return {name: service for name, service in compose()["services"].items() if "build" in service}


def test_the_process_is_not_root() -> None:
    """The last word on the user is a number, which a cluster can check, and it is not 0."""
    (user,) = final("USER")

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    uid = user.partition(":")[0]
    made = " ".join(final("RUN"))
    assert f"--uid {uid}" in made
    assert f"--owner={uid}" in made


def test_only_the_finished_package_leaves_the_build() -> None:
    """The image installs nothing itself, and copies from the build stage alone."""
    assert len(stages()) == 3
    assert [rest for rest in final("COPY") if not rest.startswith("--from=build ")] == []
    assert not re.search(r"\b(pip|apt|apt-get|gcc|curl)\b", " ".join(final("RUN")))


def test_everything_is_kept_in_the_volume() -> None:
    """Database, keys and pepper are where the volume is."""
    assert final("VOLUME") == [FOLDER]
    assert parse_store_location(environment()[STORE]) == SqliteLocation(f"{FOLDER}/pricekeeper.db")
    assert environment()[DATA_DIR] == FOLDER


def test_it_listens_where_it_is_looked_for() -> None:
    """Port of the command, exposed port and mapped port are one; health has a listener apart."""
    command = json.loads(final("CMD")[0])

    assert command[command.index("--port") + 1] == PORT
    assert final("EXPOSE") == [PORT]
    listener = read_settings(environment()).metrics_address
    assert listener == ListenAddress("127.0.0.1", int(METRICS_PORT))
    assert f"'127.0.0.1', {METRICS_PORT}," in final("HEALTHCHECK")[0]
    assert {
        port.rpartition(":")[2] for service in ours().values() for port in service["ports"]
    } == {PORT}


def test_all_that_is_copied_reaches_the_build_and_nothing_else_does() -> None:
    """`.dockerignore` starts from nothing, so that no data, key or history gets into an image."""
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    copied = {
        name.removeprefix("./")
        for stage in stages()[:-1]
        for word, rest in stage
        if word == "COPY" and not rest.startswith("--from=")
        for name in rest.split()[:-1]
    }

    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_dashboard_is_built_into_the_package() -> None:
    """By its lock file, in a stage of its own, and it is there before the wheel is made."""
    page, build, _ = stages()
    ((_, command),) = [one for one in page if one[0] == "RUN"]
    assert "npm ci --omit=dev && npm run build" in command
    words = [f"{word} {rest}" for word, rest in build]
    copied = next(i for i, line in enumerate(words) if line.startswith("COPY --from=page "))
    wheel = next(i for i, line in enumerate(words) if "pip wheel" in line)
    assert copied < wheel
    assert words[copied].endswith("./src/pricekeeper/http/page")


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
def test_the_health_check_tells_health(status: int, healthy: bool) -> None:
    """The very program of the Dockerfile, on another port."""

    class Health(Handler):
        def answer(self) -> None:
            self.reply(status if self.path == "/healthz" else 404)

    with serving(Health) as url:
        assert (check_health(urlsplit(url).port or 0) == 0) is healthy


def test_the_health_check_fails_if_nobody_listens() -> None:
    assert check_health(free_port()) != 0


def check_health(port: int) -> int:
    command = json.loads(final("HEALTHCHECK")[0].partition(" CMD ")[2])
    assert command[:2] == ["python", "-c"]
    program = command[2].replace(METRICS_PORT, str(port))
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    return done.returncode


def test_compose_starts_the_embedded_service_alone() -> None:
    """Without a profile there is one container, on this machine's own address, with a volume."""
    started = [name for name, service in compose()["services"].items() if "profiles" not in service]

    assert started == ["pricekeeper"]
    service = ours()["pricekeeper"]
    assert [port.split(":")[0] for port in service["ports"]] == ["127.0.0.1"]
    volume, _, folder = service["volumes"][0].partition(":")
    assert folder == FOLDER
    assert volume in compose()["volumes"]


def test_compose_offers_dynamodb_local() -> None:
    """With the profile there is one on DynamoDB, which finds the engine by its service's name."""
    services = compose()["services"]
    store = parse_store_location(services["pricekeeper-dynamodb"]["environment"][STORE])

    assert isinstance(store, DynamoDbLocation)
    assert store.endpoint == "http://dynamodb:8000"
    assert services["dynamodb"]["profiles"] == services["pricekeeper-dynamodb"]["profiles"]


def test_compose_knows_our_settings_and_no_secret() -> None:
    """Every setting exists, and the provisioning key has to come from outside."""
    for service in ours().values():
        given = service["environment"]
        assert {name for name in given if name.startswith("PRICEKEEPER_")} <= KNOWN
        assert fnmatchcase(given[PROVISIONING_KEY], f"${{{PROVISIONING_KEY}:[?]*}}")


def test_compose_names_the_proxies() -> None:
    """In a container the service listens to everybody, and everybody comes over one bridge."""
    for service in ours().values():
        given = service["environment"][TRUSTED_PROXIES]
        _, _, default = given.strip("${}").partition(":-")
        assert read_settings({TRUSTED_PROXIES: default}).trusted_proxies


def test_compose_takes_away_what_is_not_needed() -> None:
    """A read-only file system but for the volume and /tmp, no capability, no way to get one."""
    for service in ours().values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108  # inside the container
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
