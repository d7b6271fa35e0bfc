import type { JSX } from "preact";

export function Brand(): JSX.Element {
  return (
    <span class="brand">
      <svg viewBox="0 0 32 32" aria-hidden="true">
        <rect width="32" height="32" rx="7" class="brand-box" />
        <path d="M8 9v14h16" class="brand-axis" />
        <path d="M13.5 20v-5M18.5 20v-9M23.5 20v-6.5" class="brand-bars" />
      </svg>
      Price Keeper
    </span>
  );
}
