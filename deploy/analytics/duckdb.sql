-- Views of DuckDB over `pricekeeper export` to a folder or S3. Replace EXPORT, as in s3://BUCKET/PREFIX.

CREATE VIEW records AS SELECT * FROM read_json(
  'EXPORT/records/day=*/org=*/records.jsonl.gz',
  hive_partitioning = true,
  hive_types = {day: VARCHAR, org: VARCHAR},
  columns = {
    request_id: 'VARCHAR',
    org_id: 'VARCHAR',
    app_id: 'VARCHAR',
    scope_key: 'VARCHAR',
    model_label: 'VARCHAR',
    happened_at_ms: 'BIGINT',
    accepted_at_ms: 'BIGINT',
    service_tier: 'VARCHAR',
    calling_region: 'VARCHAR',
    pricing_version: 'VARCHAR',
    pricing_source: 'VARCHAR',
    price_estimated: 'BOOLEAN',
    is_error: 'BOOLEAN',
    cost_usd_picos: 'DECIMAL(38,0)',
    input_tokens: 'BIGINT',
    output_tokens: 'BIGINT',
    cache_read_tokens: 'BIGINT',
    cache_write_5m_tokens: 'BIGINT',
    cache_write_1h_tokens: 'BIGINT',
    tags: 'MAP(VARCHAR, VARCHAR)',
    voids: 'VARCHAR'
  }
);

CREATE VIEW totals AS SELECT * FROM read_json(
  'EXPORT/totals/day=*/org=*/totals.jsonl.gz',
  hive_partitioning = true,
  hive_types = {day: VARCHAR, org: VARCHAR},
  columns = {
    org_id: 'VARCHAR',
    app_id: 'VARCHAR',
    scope_key: 'VARCHAR',
    model_label: 'VARCHAR',
    cost_usd_picos: 'DECIMAL(38,0)',
    input_tokens: 'BIGINT',
    output_tokens: 'BIGINT',
    cache_read_tokens: 'BIGINT',
    cache_write_tokens: 'BIGINT',
    requests: 'BIGINT',
    errors: 'BIGINT'
  }
);
