/** A question that has to be answered before anything is changed. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Problem } from "../api/http";

/**
 * A form in a dialog of the browser's own, which holds the focus and closes with Escape. `submit` makes
 * the change and throws if it was refused; then the dialog says why and stays.
 */
export function Dialog(how: {
  title: string;
  /** What the button says that makes the change. */
  verb: string;
  children: ComponentChildren;
  submit: () => Promise<void>;
  close: () => void;
  isDangerous?: boolean;
}): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  const [error, setError] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await how.submit();
      how.close();
    } catch (caught) {
      setError(messageOf(caught));
      setBusy(false);
    }
  };
  return (
    <dialog ref={box} aria-labelledby={id} onClose={how.close}>
      <form onSubmit={(event) => void send(event)}>
        <h2 id={id}>{how.title}</h2>
        {how.children}
        {error === null ? null : (
          <p class="refused" role="alert">
            {error}
          </p>
        )}
        <div class="dialog-actions">
          <button type="button" onClick={() => box.current?.close()}>
            Cancel
          </button>
          <button type="submit" class={how.isDangerous ? "danger" : "primary"} disabled={isBusy}>
            {isBusy ? "Working …" : how.verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** The message of an error: the service's words, with the field if there is one. */
export function messageOf(error: unknown): string {
  if (error instanceof Problem) {
    const mistakes = error.body?.errors?.map(({ field, message }) => `${field} ${message}`);
    return mistakes && mistakes.length > 0 ? mistakes.join("; ") : error.message;
  }
  return error instanceof Error ? error.message : String(error);
}

/** A field of a form, with its name and a hint. */
export function Field(how: {
  name: string;
  hint?: ComponentChildren;
  children: (id: string) => ComponentChildren;
}): JSX.Element {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{how.name}</label>
      {how.children(id)}
      {how.hint === undefined ? null : <p class="note">{how.hint}</p>}
    </div>
  );
}
