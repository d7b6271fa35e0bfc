/** Values that the page watches. */
import { useLayoutEffect, useState } from "preact/hooks";

/** A value; components that show it are redrawn when it changes. */
export class Cell<T> {
  #value: T;
  readonly #watchers = new Set<(value: T) => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set value(next: T) {
    if (Object.is(next, this.#value)) return;
    this.#value = next;
    for (const watcher of [...this.#watchers]) watcher(next);
  }

  /** Call the watcher at every change, until what this returns is called. */
  watch(watcher: (value: T) => void): () => void {
    this.#watchers.add(watcher);
    return () => {
      this.#watchers.delete(watcher);
    };
  }
}

/** The value of a cell, for as long as a component is shown. */
export function useCell<T>(cell: Cell<T>): T {
  const [, redraw] = useState<T>(cell.value);
  useLayoutEffect(() => {
    redraw(() => cell.value);
    return cell.watch((value) => redraw(() => value));
  }, [cell]);
  return cell.value;
}
