/** Who looks? A key of an administrator, or a client with its secret. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { logIn, Problem } from "../api/http";
import { Field, messageOf } from "../parts/dialog";
import { useCell } from "../state/cell";
import { type Credential, endedBecause } from "../state/session";
import { Brand } from "./brand";
import { ThemeButton } from "./theme_button";

type Kind = Credential["kind"];

export function Login(): JSX.Element {
  const because = useCell(endedBecause);
  const [kind, setKind] = useState<Kind>("key");
  const [key, setKey] = useState("");
  const [clientId, setClientId] = useState("");
  const [secret, setSecret] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  // The first field of each kind
  useEffect(() => {
    form.current?.querySelector<HTMLInputElement>("input:not([type=radio])")?.focus();
  }, [kind]);

  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await logIn(
        kind === "key"
          ? { kind, key: key.trim() }
          : { kind, clientId: clientId.trim(), secret: secret.trim() },
      );
    } catch (caught) {
      setError(refusal(caught, kind));
      setBusy(false);
    }
  };

  return (
    <main class="login">
      <div class="login-top">
        <Brand />
        <ThemeButton />
      </div>
      <h1>Who looks?</h1>
      {because === null ? null : (
        <p class="refused" role="status">
          {because}
        </p>
      )}
      <form ref={form} onSubmit={(event) => void send(event)}>
        <fieldset class="choice">
          <legend class="hidden">How to log in</legend>
          {(["key", "client"] as const).map((one) => (
            <label key={one}>
              <input
                type="radio"
                name="kind"
                checked={kind === one}
                onChange={() => setKind(one)}
              />
              <span>{one === "key" ? "Administrator" : "App or organisation"}</span>
            </label>
          ))}
        </fieldset>
        {kind === "key" ? (
          <Field name="Key" hint="An administrator's key, or an organisation's own.">
            {(id) => (
              <input
                id={id}
                type="password"
                required
                autoComplete="off"
                spellcheck={false}
                value={key}
                onInput={(event) => setKey(event.currentTarget.value)}
              />
            )}
          </Field>
        ) : (
          <>
            <Field name="Client id" hint="org-… or org-…-app-…">
              {(id) => (
                <input
                  id={id}
                  required
                  autoComplete="off"
                  autoCapitalize="off"
                  spellcheck={false}
                  value={clientId}
                  onInput={(event) => setClientId(event.currentTarget.value)}
                />
              )}
            </Field>
            <Field
              name="Client secret"
              hint="It shows this app or organisation alone, and takes no session."
            >
              {(id) => (
                <input
                  id={id}
                  type="password"
                  required
                  autoComplete="off"
                  spellcheck={false}
                  value={secret}
                  onInput={(event) => setSecret(event.currentTarget.value)}
                />
              )}
            </Field>
          </>
        )}
        {error === null ? null : (
          <p class="refused" role="alert">
            {error}
          </p>
        )}
        <button type="submit" class="primary wide" disabled={isBusy}>
          {isBusy ? "Checking …" : "Log in"}
        </button>
      </form>
      <p class="note">
        Kept in this tab until you log out or close it. Never in an address. The API, readable:{" "}
        <a href="/docs">/docs</a>
      </p>
    </main>
  );
}

function refusal(error: unknown, kind: Kind): string {
  if (error instanceof Problem && error.status === 401) {
    return kind === "key" ? "This key is not right." : "This client id and secret are not right.";
  }
  return messageOf(error);
}
