// Types of what is being built beside the page; they move to wire.ts as it lands.
import type { Int } from "./json";
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

export interface DenialList {
  denials: DenialAnswer[];
  next?: string;
}

export interface GivenUpLabel {
  label: string;
  spend_usd_micros: Int;
  quota_usd_micros: Int;
}

export interface FlipAnswer {
  org_id: string;
  at: string;
  app_id: string | null;
  reason: "QUOTA_EXCEEDED" | "MANUAL_OVERRIDE" | "OVERRIDE_CLEARED";
  from_label: string | null;
  to_label: string | null;
  given_up: GivenUpLabel[];
  until: string;
}
