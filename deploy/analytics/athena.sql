-- Tables of Athena over `pricekeeper export` to S3, in its format jsonl. Replace BUCKET and PREFIX.
-- A day's partition is found by its name; nothing has to be added when a day is exported.
-- The questions in questions.sql work on these tables and on those of duckdb.sql.

CREATE EXTERNAL TABLE records (
  request_id string,
  org_id string,
  app_id string,
  scope_key string,
  model_label string,
  happened_at_ms bigint,
  accepted_at_ms bigint,
  service_tier string,
  calling_region string,
  pricing_version string,
  pricing_source string,
  price_estimated boolean,
  is_error boolean,
  cost_usd_picos decimal(38,0),
  input_tokens bigint,
  output_tokens bigint,
  cache_read_tokens bigint,
  cache_write_5m_tokens bigint,
  cache_write_1h_tokens bigint,
  tags map<string,string>,
  voids string
)
PARTITIONED BY (day string)
ROW FORMAT SERDE 'org.openx.data.jsonserde.JsonSerDe'
LOCATION 's3://BUCKET/PREFIX/records/'
TBLPROPERTIES (
  'projection.enabled' = 'true',
  'projection.day.type' = 'date',
  'projection.day.format' = 'yyyyMMdd',
  'projection.day.range' = '20250101,NOW',
  'storage.location.template' = 's3://BUCKET/PREFIX/records/day=${day}/'
);

CREATE EXTERNAL TABLE totals (
  org_id string,
  app_id string,
  scope_key string,
  model_label string,
  cost_usd_picos decimal(38,0),
  input_tokens bigint,
  output_tokens bigint,
  cache_read_tokens bigint,
  cache_write_tokens bigint,
  requests bigint,
  errors bigint
)
PARTITIONED BY (day string)
ROW FORMAT SERDE 'org.openx.data.jsonserde.JsonSerDe'
LOCATION 's3://BUCKET/PREFIX/totals/'
TBLPROPERTIES (
  'projection.enabled' = 'true',
  'projection.day.type' = 'date',
  'projection.day.format' = 'yyyyMMdd',
  'projection.day.range' = '20250101,NOW',
  'storage.location.template' = 's3://BUCKET/PREFIX/totals/day=${day}/'
);
