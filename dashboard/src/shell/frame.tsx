/** The frame of every page: navigation, filters, and whether the page is up to date. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Audit } from "../pages/audit";
import { Budgets } from "../pages/budgets";
import { Client } from "../pages/client";
import { Denials } from "../pages/denials";
import { Log } from "../pages/log";
import { Overview } from "../pages/overview";
import { linkTo, type PageName } from "../state/route";
import { endSession } from "../state/session";
import { useView, type View } from "../state/view";
import { Brand } from "./brand";
import { FilterBar } from "./filters";
import { LiveLight } from "./live_light";
import { ThemeButton } from "./theme_button";

const BODIES: Readonly<Record<PageName, (how: { view: View }) => JSX.Element>> = {
  overview: Overview,
  client: Client,
  budgets: Budgets,
  denials: Denials,
  log: Log,
  audit: Audit,
};

/** The pages that a viewer has, with their names. */
export function pagesOf(view: View): [PageName, string][] {
  const { rights } = view;
  const own = rights.onlyApp !== null ? "App" : "Organisation";
  const pages: [PageName, string][] = [
    ["overview", "Overview"],
    ["client", own],
    ["budgets", "Budgets"],
    ["denials", "Denials"],
    ["log", "Log"],
  ];
  if (rights.audits) pages.push(["audit", "Audit"]);
  return pages;
}

export function Frame(): JSX.Element {
  const view = useView();
  const pages = pagesOf(view);
  const found = pages.find(([name]) => name === view.route.page) ?? pages[0];
  const [page, title] = found ?? ["overview", "Overview"];
  const heading = useRef<HTMLHeadingElement>(null);
  const Body = BODIES[page];
  const shown = useRef(page);
  useEffect(() => {
    document.title = `${title} · Price Keeper`;
    // Screen readers announce the new page.
    if (shown.current !== page) heading.current?.focus();
    shown.current = page;
  }, [page, title]);
  return (
    <>
      <button type="button" class="skip" onClick={skip}>
        Skip to the content
      </button>
      <header class="top">
        <div class="top-row">
          <Brand />
          <nav aria-label="Pages">
            {pages.map(([name, text]) => (
              <a
                key={name}
                href={linkTo({ page: name })}
                {...(name === page ? { "aria-current": "page" as const } : {})}
              >
                {text}
              </a>
            ))}
          </nav>
          <div class="who">
            <LiveLight />
            <ThemeButton />
            <Who view={view} />
          </div>
        </div>
        <FilterBar view={view} />
      </header>
      <main id="content" tabIndex={-1}>
        <h1 ref={heading} tabIndex={-1} class="hidden">
          {title}
        </h1>
        <Body view={view} />
      </main>
    </>
  );
}

function skip(): void {
  document.getElementById("content")?.focus();
}

function Who({ view }: { view: View }): JSX.Element {
  const { me } = view.session;
  const name =
    me.name ??
    me.client_id ??
    (me.kind === "DEPLOYMENT_KEY" ? "deployment key" : "organisation key");
  const role = me.role?.toLowerCase() ?? "read-only";
  return (
    <details class="menu">
      <summary title={name}>
        <span class="who-name">{name}</span>
        <span class="badge plain">{role}</span>
      </summary>
      <div class="menu-box">
        <p>
          <strong>{name}</strong>
          <br />
          {role}
          {view.rights.onlyOrg === null ? " · every organisation that it covers" : ""}
        </p>
        <p>
          <a href="/docs">The API</a>
        </p>
        <button type="button" onClick={() => endSession(null)}>
          Log out
        </button>
      </div>
    </details>
  );
}
