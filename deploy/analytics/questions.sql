-- What finance asks, in SQL that Athena and DuckDB understand. A dollar is 10^12 pico-dollars.
-- The dates are examples: a range of days reads these partitions alone.

-- spend by app and label, the largest first
SELECT org_id, app_id, model_label, CAST(sum(cost_usd_picos) AS double) / 1e12 AS usd, sum(requests) AS requests
FROM totals
WHERE day BETWEEN '20260101' AND '20260131'
GROUP BY org_id, app_id, model_label
ORDER BY usd DESC, org_id, app_id, model_label;

-- spend by the value of a tag
SELECT try(tags['team']) AS team, CAST(sum(cost_usd_picos) AS double) / 1e12 AS usd, count(*) AS records
FROM records
WHERE day BETWEEN '20260101' AND '20260131'
GROUP BY try(tags['team'])
ORDER BY usd DESC, team;

-- spend by day, and what was charged at an estimated price
SELECT day, CAST(sum(cost_usd_picos) AS double) / 1e12 AS usd,
  CAST(sum(CASE WHEN price_estimated THEN cost_usd_picos ELSE 0 END) AS double) / 1e12 AS estimated_usd
FROM records
WHERE day BETWEEN '20260101' AND '20260131'
GROUP BY day
ORDER BY day;

-- accounts whose total is not the sum of their records, of which there should be none
SELECT t.day, t.scope_key, t.model_label, t.cost_usd_picos AS total, r.cost_usd_picos AS records
FROM totals t
LEFT JOIN (
  SELECT day, scope_key, model_label, sum(cost_usd_picos) AS cost_usd_picos
  FROM records
  WHERE day BETWEEN '20260101' AND '20260131'
  GROUP BY day, scope_key, model_label
) r ON t.day = r.day AND t.scope_key = r.scope_key AND t.model_label = r.model_label
WHERE t.day BETWEEN '20260101' AND '20260131'
  AND (r.cost_usd_picos IS NULL OR t.cost_usd_picos <> r.cost_usd_picos);
