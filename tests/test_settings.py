"""Settings: the environment, read once; a typo is an error at start."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import SettingsError
from pricekeeper.settings import (
    CLIENT_SETTINGS,
    MEMORY,
    PREFIX_DEFAULT,
    SETTINGS,
    AwsPriceLocation,
    BedrockLocation,
    DynamoDbLocation,
    FolderLocation,
    GenaiPackage,
    ListenAddress,
    S3Location,
    SqliteLocation,
    StoreLocation,
    parse_export_location,
    parse_price_location,
    parse_store_location,
    read_settings,
    unknown_settings,
)

LOOPBACK = "http://127.0.0.1:8000"
TOPICS = [f"arn:aws:sns:eu-central-1:123456789012:{name}" for name in ("one", "two.fifo")]


def test_without_an_environment_there_is_a_file() -> None:
    assert read_settings({}).store == SqliteLocation("data/pricekeeper.db")


def test_the_store_is_chosen_by_one_variable() -> None:
    """PRICEKEEPER_STORE decides; other variables are not ours."""
    environment = {"PRICEKEEPER_STORE": "sqlite://:memory:", "HOME": "/nowhere"}
    assert read_settings(environment).store == SqliteLocation(MEMORY)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("sqlite://:memory:", SqliteLocation(MEMORY)),
        ("sqlite:///relative/file.db", SqliteLocation("relative/file.db")),
        ("sqlite:////absolute/file.db", SqliteLocation("/absolute/file.db")),
        ("sqlite:///with%20space.db", SqliteLocation("with space.db")),
        ("sqlite:///what%3F.db", SqliteLocation("what?.db")),
        ("dynamodb://eu-central-1", DynamoDbLocation("eu-central-1", PREFIX_DEFAULT, None)),
        ("dynamodb://us-gov-west-1/", DynamoDbLocation("us-gov-west-1")),
        ("dynamodb://us-east-1?prefix=", DynamoDbLocation("us-east-1", "")),
        ("dynamodb://us-east-1?prefix=team-a.", DynamoDbLocation("us-east-1", "team-a.")),
        (
            f"dynamodb://us-east-1?prefix=t-&endpoint={LOOPBACK}/",
            DynamoDbLocation("us-east-1", "t-", LOOPBACK),
        ),
    ],
)
def test_a_store_is_named_by_a_url(url: str, location: StoreLocation) -> None:
    """Three slashes are a relative path, four an absolute one; options follow the region."""
    assert parse_store_location(url) == location


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not a store"),
        ("pricekeeper.db", "is not a store"),
        ("SQLITE:///a.db", "is not a store"),
        ("postgres://host/db", "is not a store"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://file.db", "names no file"),
        ("sqlite:///file.db?mode=ro", "names no file"),
        ("sqlite:///a%00b", "names no file"),
        ("dynamodb://", "is not an AWS region"),
        ("dynamodb://nowhere", "is not an AWS region"),
        ("dynamodb://us-east-1/table", "is not an AWS region"),
        ("dynamodb://us-east-1?table=x", "unknown option 'table'"),
        ("dynamodb://us-east-1?prefix=a/b", "prefix may have"),
        (f"dynamodb://us-east-1?prefix={'x' * 101}", "prefix may have"),
        ("dynamodb://us-east-1?endpoint=localhost:8000", "is not an http"),
        ("dynamodb://us-east-1?endpoint=http://", "is not an http"),
        ("dynamodb://us-east-1?endpoint=", "is not an http"),
    ],
)
def test_a_typo_is_told_with_the_name_of_the_variable(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        parse_store_location(url)
    assert caught.value.setting == "PRICEKEEPER_STORE"


@given(
    scheme=st.sampled_from(["", "sqlite://", "dynamodb://", "dynamodb://us-east-1?endpoint="]),
    rest=st.text() | st.text(alphabet="[]:/?&=%#@.0aé"),
)
def test_any_text_is_a_store_or_a_settings_error(scheme: str, rest: str) -> None:
    try:
        location = parse_store_location(scheme + rest)
    except SettingsError:
        return
    assert isinstance(location, SqliteLocation | DynamoDbLocation)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("genai", "is no source of prices"),
        ("genai-prices ", "is no source of prices"),
        ("prices.json", "is no source of prices"),
        ("aws", "is no source of prices"),
        ("aws:", "is no source of prices"),
        ("AWS:us-east-1", "is no source of prices"),
        ("aws::prices.json", "'' is not an AWS region"),
        ("aws:prices.json", "'prices.json' is not an AWS region"),
        ("aws:us-east", "'us-east' is not an AWS region"),
        ("aws:us-east-1:", "'' is no file"),
        ("aws:us-east-1:a.json,", "'' is no file"),
        ("aws:us-east-1:s3://bucket/a.json", "is no file and no https"),
        ("aws:us-east-1:http://prices.example/a.json", "is no file and no https"),
    ],
)
def test_a_typo_in_the_price_source_is_told_when_settings_are_read(text: str, message: str) -> None:
    """Not by the job that asks for prices once a day; the message has the forms there are."""
    with pytest.raises(SettingsError, match=message) as caught:
        read_settings({"PRICEKEEPER_PRICE_SOURCE": text})
    assert caught.value.setting == "PRICEKEEPER_PRICE_SOURCE"
    assert "use genai-prices, aws:REGION or aws:REGION:FILE_OR_URL" in str(caught.value)


@given(
    scheme=st.sampled_from(["", "genai", "aws:", "aws:us-east-1:"]),
    rest=st.text() | st.text(alphabet="aws:/-1,."),
)
def test_any_text_is_a_price_source_or_a_settings_error(scheme: str, rest: str) -> None:
    try:
        location = parse_price_location(scheme + rest)
    except SettingsError:
        return
    assert isinstance(location, GenaiPackage | AwsPriceLocation)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRUSTED_PROXIES", "lb.internal"),
        ("TRUSTED_PROXIES", "10.0.1.5/16"),
        ("TRUSTED_PROXIES", "10.0.0.0/16;"),
        ("TRUSTED_PROXIES", "10.0.0.0/16,"),
        ("REFRESH_AUTH", "yes"),
        *(("CONNECTIONS_MAX", text) for text in ("15", "0", "-1", "x", "1000001", "9" * 20)),
        *(("METRICS_PORT", text) for text in ("0", "65536", "-1", "x", "1.5", "a:", "²")),
        ("METRICS_PORT", "0000099999"),
        *(("METRICS_PORT", text) for text in (":9464", "::1:9464")),
        *(("METRICS_TOKEN", text) for text in ("short", "a\nline break", " ends ", "ümlaut" * 4)),
        *(("RETENTION_DAYS", text) for text in ("29", "3651", "0", "-1", "x", "90.0", "²")),
        *(("RETENTION_DAYS", text) for text in ("9" * 20, "0000000099999")),
        ("REQUEST_DEADLINE_SECS", "0000000600"),
        ("API_RATE_LIMITS", f"token={'9' * 5_000}"),
        *(("S3_ENDPOINT", text) for text in ("localhost:9000", "ftp://x", "http://", "http://[x")),
        *(("S3_ENDPOINT", text) for text in ("http://x/path", "http://u:p@x")),
        ("BEDROCK_REGION", "useast"),
        ("BEDROCK_REGION", "us-east-1.evil.example/"),
        *(("BEDROCK_UPSTREAM", text) for text in ("bedrock", "ftp://127.0.0.1", "http://")),
        ("BEDROCK_UPSTREAM", "http://127.0.0.1:99999"),
        ("BEDROCK_UPSTREAM", "http://[::1"),
        ("BEDROCK_UPSTREAM", "http://127.0.0.1?a=b"),
        ("BEDROCK_UPSTREAM", "http://127.0.0.1#part"),
        ("BEDROCK_UPSTREAM", "http://user:password@127.0.0.1"),
        *(("GATEWAY_BODY_MB_MAX", text) for text in ("0", "1001", "-1", "25MB")),
        ("SERVE_ONLY", "both"),
        ("SERVE_ONLY", "API"),
        ("ALERT_TOPICS", "alerts"),
        ("ORG_ADMINS_SET_BUDGETS", "yes"),
        ("PROVISIONING_KEY", "schl\xfcssel-schl\xfcssel"),
        ("PROVISIONING_KEY", " sixteen-characters"),
        ("PROVISIONING_KEY", "sixteen-characters\n"),
        ("PROVISIONING_KEY", "sixteen\rcharacters"),
    ],
)
def test_what_a_setting_does_not_allow_is_refused_at_the_start(name: str, value: str) -> None:
    """The error names the setting. A key is refused if no header could carry it."""
    with pytest.raises(SettingsError, match=f"PRICEKEEPER_{name}"):
        read_settings({f"PRICEKEEPER_{name}": value})


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("REFRESH_AUTH", "", "refresh_needs_secret", False),
        ("REFRESH_AUTH", "optional", "refresh_needs_secret", False),
        ("REFRESH_AUTH", "required", "refresh_needs_secret", True),
        (
            "PROVISIONING_KEY",
            "blanks inside are fine",
            "provisioning_key",
            "blanks inside are fine",
        ),
        ("TRUSTED_PROXIES", "", "trusted_proxies", None),
        ("TRUSTED_PROXIES", "none", "trusted_proxies", ""),
        ("TRUSTED_PROXIES", "127.0.0.1", "trusted_proxies", "127.0.0.1"),
        (
            "TRUSTED_PROXIES",
            "10.0.0.0/16, 2001:db8::/32",
            "trusted_proxies",
            "10.0.0.0/16,2001:db8::/32",
        ),
        ("TRUSTED_PROXIES", "*", "trusted_proxies", "*"),
        ("METRICS_PORT", "", "metrics_address", None),
        ("METRICS_PORT", "9464", "metrics_address", ListenAddress("127.0.0.1", 9464)),
        ("METRICS_PORT", "10.0.0.1:9464", "metrics_address", ListenAddress("10.0.0.1", 9464)),
        ("METRICS_PORT", "[::1]:9464", "metrics_address", ListenAddress("::1", 9464)),
        (
            "METRICS_PORT",
            "metrics.internal:1",
            "metrics_address",
            ListenAddress("metrics.internal", 1),
        ),
        ("METRICS_TOKEN", "", "metrics_token", None),
        ("CONNECTIONS_MAX", "16", "connections_max", 16),
        ("RETENTION_DAYS", "", "retention_days", 90),
        ("RETENTION_DAYS", "30", "retention_days", 30),
        ("RETENTION_DAYS", "3650", "retention_days", 3_650),
        ("EXPORT_TO", "", "export_to", None),
        ("EXPORT_TO", "exports", "export_to", FolderLocation("exports")),
        ("EXPORT_TO", "/var/exports", "export_to", FolderLocation("/var/exports")),
        ("EXPORT_TO", "s3://bucket", "export_to", S3Location("bucket")),
        ("EXPORT_TO", "s3://bucket/", "export_to", S3Location("bucket")),
        (
            "EXPORT_TO",
            "s3://my.bucket-1/usage/prod/",
            "export_to",
            S3Location("my.bucket-1", "usage/prod"),
        ),
        ("S3_ENDPOINT", "http://127.0.0.1:9000/", "s3_endpoint", "http://127.0.0.1:9000"),
        ("ALERT_TOPICS", "", "alert_topics", frozenset()),
        ("ALERT_TOPICS", f" {TOPICS[0]},{TOPICS[1]}, ", "alert_topics", frozenset(TOPICS)),
        ("ORG_ADMINS_SET_BUDGETS", "", "org_admins_set_budgets", False),
        ("ORG_ADMINS_SET_BUDGETS", "0", "org_admins_set_budgets", False),
        ("ORG_ADMINS_SET_BUDGETS", "1", "org_admins_set_budgets", True),
        ("GATEWAY_BODY_MB_MAX", "", "gateway_body_mb_max", 25),
        ("GATEWAY_BODY_MB_MAX", "40", "gateway_body_mb_max", 40),
        ("PRICE_SOURCE", "", "price_source", None),
        ("PRICE_SOURCE", "genai-prices", "price_source", GenaiPackage()),
        ("PRICE_SOURCE", "aws:eu-central-1", "price_source", AwsPriceLocation("eu-central-1")),
        (
            "PRICE_SOURCE",
            "aws:us-gov-west-1:prices.json",
            "price_source",
            AwsPriceLocation("us-gov-west-1", ("prices.json",)),
        ),
        (
            "PRICE_SOURCE",
            "aws:us-east-1:/prices/a.json,https://prices.example/b.json",
            "price_source",
            AwsPriceLocation("us-east-1", ("/prices/a.json", "https://prices.example/b.json")),
        ),
    ],
)
def test_a_setting_is_read_and_an_empty_one_is_the_default(
    name: str, text: str, field: str, value: object
) -> None:
    assert getattr(read_settings({f"PRICEKEEPER_{name}": text}), field) == value
    if not text:
        assert getattr(read_settings({}), field) == value


def test_known_names_are_no_news() -> None:
    """The service's, a client's and the tests' own; other names are ignored."""
    names = {setting.name for setting in (*SETTINGS, *CLIENT_SETTINGS)}
    known = dict.fromkeys(
        {*names, "PRICEKEEPER_REQUIRE_ENGINE", "HOME", "PRICE", "PRICES_URL"}, "x"
    )
    assert unknown_settings(known) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PRICEKEEPER_STROE", "PRICEKEEPER_STORE"),
        ("PRICEKEEPER_DATADIR", "PRICEKEEPER_DATA_DIR"),
        ("PRICEKEEPER_PROVISIONING_KEYS", "PRICEKEEPER_PROVISIONING_KEY"),
        ("PRICEKEEPER_AGGREGATOR_INTERVAL", "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS"),
        ("PRICEKEEPER_CLIENT_SECERT", "PRICEKEEPER_CLIENT_SECRET"),
        ("PRICE_KEEPER_STORE", "PRICEKEEPER_STORE"),
        ("PRICEKEPER_STORE", "PRICEKEEPER_STORE"),
        ("pricekeeper_store", "PRICEKEEPER_STORE"),
    ],
)
def test_a_misspelt_name_is_told_with_the_one_that_is_meant(name: str, meant: str) -> None:
    """Its value is not told: it may be a secret."""
    (told,) = unknown_settings({name: "s3cret", "PRICEKEEPER_STORE": "x"})
    assert told.startswith(f"{name} is not a setting")
    assert told.endswith(f"do you mean {meant}?")
    assert "s3cret" not in told


def test_a_name_that_is_like_no_other_is_told_as_well() -> None:
    assert unknown_settings({"PRICEKEEPER_XYZZY": "1"}) == [
        "PRICEKEEPER_XYZZY is not a setting and has no effect"
    ]


def test_what_kubernetes_sets_is_not_told() -> None:
    of_kubernetes = {
        "PRICEKEEPER_SERVICE_HOST": "10.0.0.1",
        "PRICEKEEPER_SERVICE_PORT": "8080",
        "PRICEKEEPER_SERVICE_PORT_HTTP": "8080",
        "PRICEKEEPER_PORT": "tcp://10.0.0.1:8080",
        "PRICEKEEPER_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "PRICEKEEPER_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_settings(of_kubernetes) == []
    assert len(unknown_settings({"PRICEKEEPER_PORT": "8080"})) == 1


def test_a_misspelt_name_in_a_settings_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("PRICEKEEPER_STROE=sqlite:///x.db\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"line 1.*do you mean PRICEKEEPER_STORE\?"):
        read_settings({"PRICEKEEPER_SETTINGS": str(path)})


def test_a_metrics_token_is_a_secret() -> None:
    token = "a-token-of-thirty-two-characters"
    settings = read_settings({"PRICEKEEPER_METRICS_TOKEN": token})
    assert settings.metrics_token == token
    assert token not in repr(settings)


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3://B",
        "s3://UPPER/x",
        "s3://a..b/x",
        "s3://bucket//x",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://bucket/" + "x" * 513,
        "gs://bucket/x",
        "https://bucket/x",
        "a\0b",
    ],
)
def test_what_is_no_place_for_exports(text: str) -> None:
    with pytest.raises(SettingsError, match=r"PRICEKEEPER_EXPORT_TO.*s3://BUCKET/PREFIX"):
        parse_export_location(text)


def test_what_was_not_exported_is_kept_where_we_delete_it_ourselves() -> None:
    """DynamoDB deletes by itself, so no promise holds there; exports need a place."""
    asked = {"PRICEKEEPER_EXPORT_BEFORE_DELETE": "1", "PRICEKEEPER_EXPORT_TO": "exports"}
    assert read_settings({}).exports_before_delete is False
    assert read_settings(asked).exports_before_delete is True
    for change in (
        {"PRICEKEEPER_STORE": "dynamodb://eu-central-1"},
        {"PRICEKEEPER_EXPORT_TO": ""},
        {"PRICEKEEPER_EXPORT_BEFORE_DELETE": "yes"},
    ):
        with pytest.raises(SettingsError, match="PRICEKEEPER_EXPORT_BEFORE_DELETE"):
            read_settings(asked | change)


@pytest.mark.parametrize(
    ("environment", "location"),
    [
        ({}, None),
        ({"UPSTREAM": "", "REGION": ""}, None),
        (
            {"REGION": "eu-central-1"},
            BedrockLocation(
                "https://bedrock-runtime.eu-central-1.amazonaws.com", "eu-central-1", signs=True
            ),
        ),
        ({"UPSTREAM": LOOPBACK}, BedrockLocation(LOOPBACK, "us-east-1", signs=False)),
        ({"UPSTREAM": f"{LOOPBACK}/"}, BedrockLocation(LOOPBACK, "us-east-1", signs=False)),
        (
            {"UPSTREAM": f"{LOOPBACK}/base/path/"},
            BedrockLocation(f"{LOOPBACK}/base/path", "us-east-1", signs=False),
        ),
        (
            {"UPSTREAM": LOOPBACK, "REGION": "eu-west-1"},
            BedrockLocation(LOOPBACK, "eu-west-1", signs=True),
        ),
        (
            {"UPSTREAM": "https://vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com"},
            BedrockLocation(
                "https://vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com",
                "us-east-1",
                signs=True,
            ),
        ),
    ],
)
def test_the_gateway_is_there_if_it_has_an_upstream(
    environment: dict[str, str], location: BedrockLocation | None
) -> None:
    """A region is AWS's own, and is signed for; a URL without one is signed for over TLS alone."""
    given = {f"PRICEKEEPER_BEDROCK_{name}": value for name, value in environment.items()}
    assert read_settings(given).bedrock == location


@pytest.mark.parametrize(
    ("only", "api", "gateway"), [("", True, True), ("api", True, False), ("gateway", False, True)]
)
def test_one_part_may_be_served_alone(only: str, api: bool, gateway: bool) -> None:
    settings = read_settings({"PRICEKEEPER_SERVE_ONLY": only})
    assert (settings.serves_api, settings.serves_gateway) == (api, gateway)
