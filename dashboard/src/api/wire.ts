// Written by tools/wire_types.py from the service's own description: `make page-types`.
import type { Int } from "./json";

/** One day of an organisation or an app. */
export interface AggregateAnswer {
  org_id: string;
  date: string;
  timezone: string;
  quota_scope: string;
  models: Record<string, ModelAggregate>;
  total_cost_usd_micros: Int;
  total_quota_usd_micros: Int;
  total_quota_pct: number;
  sticky_fallback_active: boolean;
  current_active_model: string | null;
  updated_at: string | null;
  app_id?: string;
  apps?: Record<string, Int>;
}

/** An alert in the form that was sent, and its deliveries. */
export interface AlertAnswer {
  id: string;
  kind: "AGGREGATOR_LAG" | "ANOMALY" | "BUDGET" | "DENIALS" | "EXHAUSTED" | "FALLBACK" | "PRICE" | "QUOTA" | "SECRET_AGE" | "UNSETTLED";
  at: string;
  title: string;
  text: string;
  next: string;
  about: Record<string, unknown>;
  org_id: string | null;
  org_name: string | null;
  app_id: string | null;
  app_name: string | null;
  state: "delivered" | "given_up" | "pending" | "unsent";
  deliveries: DeliveryAnswer[];
}

/** Alerts, the newest first; a page may be empty although more pages follow. */
export interface AlertList {
  alerts: AlertAnswer[];
  next?: string;
}

/** The thresholds of the organisation's alerts; null counts as left out. */
export interface AlertsBody {
  quota_at_pct?: Int[] | null;
  denied_pct?: Int | null;
  unsettled_pct?: Int | null;
  anomaly_pct?: Int | null;
  secret_days?: Int | null;
}

/** Budgets of an organisation, of its apps, and of the next organisation.

    A page may be empty and have a next. */
export interface AllBudgets {
  budgets: ClientBudget[];
  next?: string;
}

/** An app. */
export interface AppAnswer {
  org_id: string;
  app_id: string;
  app_name: string;
  client_id: string;
  configuration: Configuration;
  inherited_fields: string[];
  status?: string;
  secret_retrieval?: SecretRetrieval;
  created_at?: string;
  updated_at?: string;
  client_secret_created_at?: string;
  frozen?: Frozen;
}

/** A page of apps. */
export interface AppList {
  apps: AppAnswer[];
  next?: string;
}

/** A change, written in the same transaction as the change itself. */
export interface AuditEntry {
  id: string;
  at: string;
  actor: string;
  address: string;
  action: string;
  target: string;
  request_id: string;
  seq: Int;
  org_id?: string;
  reason?: string;
  before?: Record<string, unknown>;
  after?: Record<string, unknown>;
}

/** A page of entries, the newest first; a page may be empty although more pages follow. */
export interface AuditList {
  entries: AuditEntry[];
  next?: string;
}

/** An authorization and its present state. */
export interface AuthorizationAnswer {
  authorization_id: string;
  status: "captured" | "open" | "unsettled" | "voided";
  model_label: string;
  held_usd_micros: Int;
  max_output_tokens: Int;
  authorized_at: string;
  expires_at: string;
  tags: Record<string, string>;
  reason: string;
  considered: ConsideredLabel[];
  cost_usd_micros?: Int;
  overrun_usd_micros?: Int;
  settled_at?: string;
  void_reason?: string;
}

/** Authorizations that are open or unsettled, the newest first. */
export interface AuthorizationList {
  authorizations: AuthorizationAnswer[];
  next?: string;
}

/** The form that AWS SDKs read from a container credentials endpoint. */
export interface AwsCredentialsAnswer {
  AccessKeyId: string;
  SecretAccessKey: string;
  Token: string;
  Expiration: string;
}

/** A limit of a bucket. */
export interface BucketState {
  remaining: Int;
  capacity: Int;
  resets_at: string;
  consumed: Int;
}

/** A limit on spend in each window of the organisation's calendar; null counts as left out. */
export interface BudgetBody {
  name: string;
  window: "DAY" | "HOUR" | "MONTH" | "WEEK";
  limit_usd_micros: Int;
  labels?: string[] | null;
  per_tag?: string | null;
  enforcement?: "HARD" | "SOFT" | null;
  alert_at_pct?: Int[] | null;
}

/** A budget and its owner. */
export interface ClientBudget {
  name: string;
  scope: "APP" | "ORG";
  window: "DAY" | "HOUR" | "MONTH" | "WEEK";
  limit_usd_micros: Int;
  spent_usd_micros: Int;
  held_usd_micros: Int;
  remaining_usd_micros: Int;
  resets_at: string;
  enforcement: "HARD" | "SOFT";
  kind: "BUDGET" | "QUOTA";
  unsettled_usd_micros: Int;
  window_started_at: string;
  label?: string;
  tag?: Record<string, string>;
  org_id: string;
  org_name: string;
  app_id?: string;
  app_name?: string;
}

/** The settings in force, inherited or not; the budgets are the client's own. */
export interface Configuration {
  timezone: string;
  quota_scope: string;
  model_ordering: string[];
  quotas: Record<string, Int>;
  sticky_fallback_enabled: boolean;
  agg_shard_count: Int;
  tight_mode_threshold_pct: Int;
  refresh_interval_normal_secs: Int;
  refresh_interval_tight_secs: Int;
  session_limit: Int;
  rate_limits: Record<string, Record<string, RateLimitBody>>;
  tag_keys: string[];
  budgets: BudgetBody[];
  quota_enforcement: string;
  alerts: AlertsBody;
  max_output_tokens_cap: Int | null;
}

/** A label that was considered, and why it was skipped. */
export interface ConsideredLabel {
  label: string;
  outcome: "CHOSEN" | "SKIPPED";
  because?: string;
}

/** The delivery of an alert to a channel. */
export interface DeliveryAnswer {
  channel: string;
  state: "delivered" | "given_up" | "pending" | "unsent";
  at?: string;
  error?: string;
}

/** Calls of one minute that were denied for the same reasons. */
export interface DenialAnswer {
  org_id: string;
  app_id: string | null;
  kind: string;
  model: string;
  code: string;
  count: Int;
  first_at: string;
  last_at: string;
  example: Record<string, unknown>;
}

/** Denials, the newest minute first. A page may be empty and have a next. */
export interface DenialList {
  denials: DenialAnswer[];
  next?: string;
}

/** A flip or an override: another label is recommended until the day ends. */
export interface FlipAnswer {
  org_id: string;
  at: string;
  app_id: string | null;
  reason: "MANUAL_OVERRIDE" | "OVERRIDE_CLEARED" | "QUOTA_EXCEEDED" | "QUOTA_RAISED";
  from_label: string | null;
  to_label: string | null;
  given_up: GivenUpLabel[];
  until: string;
}

/** Flips and overrides, the newest first. */
export interface FlipList {
  flips: FlipAnswer[];
  next?: string;
}

/** The forecast of one window. An unknown value is null. */
export interface ForecastAnswer {
  kind: "BUDGET" | "QUOTA" | "TOTAL";
  scope: "APP" | "ORG";
  window: "DAY" | "HOUR" | "MONTH" | "WEEK";
  window_started_at: string;
  resets_at: string;
  spent_usd_micros: Int;
  expected_usd_micros: Int | null;
  low_usd_micros: Int | null;
  high_usd_micros: Int | null;
  straight_line_usd_micros: Int | null;
  method: "NONE" | "PROFILE" | "STRAIGHT_LINE";
  history_hours: Int;
  name?: string;
  limit_usd_micros?: Int;
  spent_at?: string;
  spent_at_earliest?: string;
  label?: string;
  tag?: Record<string, string>;
}

/** A forecast for every budget that applies, and for the total of today and of this month. */
export interface ForecastList {
  forecasts: ForecastAnswer[];
}

/** The reason, the time, and whether the organisation or only the app is frozen. */
export interface Frozen {
  reason: string;
  at: string;
  scope: "APP" | "ORG";
}

/** A label whose quota was spent, and the amounts. */
export interface GivenUpLabel {
  label: string;
  spend_usd_micros: Int;
  quota_usd_micros: Int;
}

/** The buckets that an acquire of this app takes from, by resource and limit. */
export interface LimitList {
  resources: Record<string, Record<string, BucketState>>;
  org_resources: Record<string, Record<string, BucketState>>;
}

/** The credential of the request, and what it may see. */
export interface Me {
  kind: "ADMIN_KEY" | "CLIENT" | "DEPLOYMENT_KEY" | "ORG_KEY";
  role?: string;
  org_ids?: string[];
  key_id?: string;
  name?: string;
  expires_at?: string;
  client_id?: string;
  app_id?: string;
  scope?: string;
}

/** One bad field. */
export interface Mistake {
  field: string;
  message: string;
}

/** One label's day. */
export interface ModelAggregate {
  bedrock_model_id: string;
  quota_usd_micros: Int;
  quota_pct: number;
  quota_status: string;
  requests: Int;
  average_cost_usd_micros: Int;
  cost_usd_micros: Int;
  input_tokens: Int;
  output_tokens: Int;
  cache_read_tokens: Int;
  cache_write_tokens: Int;
}

/** An organisation. */
export interface OrgAnswer {
  org_id: string;
  org_name: string;
  client_id: string;
  configuration: Configuration;
  status?: string;
  secret_retrieval?: SecretRetrieval;
  created_at?: string;
  updated_at?: string;
  client_secret_created_at?: string;
  frozen?: Frozen;
}

/** A page of organisations. */
export interface OrgList {
  orgs: OrgAnswer[];
  next?: string;
}

/** The override in force. */
export interface OverrideAnswer {
  model_label: string;
  org_day: string;
  expires_at: string;
}

/** RFC 9457, with our stable code, the request's id and typed extras. */
export interface ProblemBody {
  type: string;
  title: string;
  status: Int;
  detail: string;
  code: string;
  request_id: string;
  errors?: Mistake[];
  details?: Record<string, unknown>;
  outcome?: "NOT_APPLIED" | "OUTCOME_UNKNOWN";
}

/** A token bucket, which fills within ten years. */
export interface RateLimitBody {
  capacity: Int;
  refill_amount: Int;
  refill_period_ms: Int;
}

/** A one-time token that can be claimed for the secret. */
export interface SecretRetrieval {
  token: string;
  expires_at: string;
}

/** A live session. */
export interface SessionAnswer {
  session_id: string;
  created_at: string;
  last_used_at: string;
  expires_at: string;
  user_agent: string;
  address: string;
  current: boolean;
}

/** The live sessions of a client, the oldest first. */
export interface SessionList {
  sessions: SessionAnswer[];
  limit: Int;
}

/** Spend by group, in order; the total is the exact sum of the rows. */
export interface SpendAnswer {
  rows: Record<string, string | Int>[];
  total: SpendSum;
  as_of: string | null;
}

/** Spend and usage. Micro-dollars are rounded down; fractions are counted. */
export interface SpendSum {
  cost_usd_micros: Int;
  input_tokens: Int;
  output_tokens: Int;
  cache_read_tokens: Int;
  cache_write_tokens: Int;
  requests: Int;
  errors: Int;
  held_usd_micros: Int;
  unsettled_usd_micros: Int;
}

/** Usage records, the newest first. A page may be empty and have a next. */
export interface UsageList {
  records: UsageRecord[];
  next?: string;
}

/** A usage record, or a correction that removes one from the totals. */
export interface UsageRecord {
  request_id: string;
  app_id: string | null;
  model_label: string;
  happened_at: string;
  recorded_at: string;
  input_tokens: Int;
  output_tokens: Int;
  cache_read_tokens: Int;
  cache_write_5m_tokens: Int;
  cache_write_1h_tokens: Int;
  cost_usd_micros: Int;
  service_tier: string | null;
  pricing_version: string;
  price_estimated: boolean;
  calling_region: string | null;
  tags: Record<string, string>;
  status: "ERROR" | "OK";
  voids?: string;
  voided_at?: string;
  correction_id?: string;
}
