// Small parts that several screens use.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { Icon } from "./icons.js";
import { copy } from "./command.js";

export function Copy({ text, what = "Copy", name }) {
  const [said, say] = useState("");
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => say(""), 2000);
    return () => clearTimeout(timer);
  }, [said]);
  return html`<button type="button" class="quiet" aria-label=${name && !said ? name : undefined}
    onClick=${async () => say(await copy(text) ? "Copied" : "Select and copy it")}>
    <${Icon} name="copy" /><span aria-live="polite">${said || what}</span></button>`;
}

export const Failed = ({ error }) => html`<p class="notice is-bad" role="alert">${error.message}</p>`;

// [busy, send(work)]: one work at a time. One that answers true has left the screen, and nothing is sent after it.
export function use_sending() {
  const [busy, set_busy] = useState(false);
  const sending = useRef(false);  // A second click comes before the button is drawn as disabled.
  return [busy, async (work) => {
    if (sending.current) return;
    sending.current = true;
    set_busy(true);
    if (await work()) return;
    sending.current = false;
    set_busy(false);
  }];
}

// Grey rows, but only if it takes 200 ms.
export function Waiting({ rows = 3 }) {
  const [late, set_late] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => set_late(true), 200);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="waiting" role="status"><span class="sr">Loading</span>
    ${late && Array.from({ length: rows }, () => html`<div class="ghost" />`)}</div>`;
}

// A modal dialog of the browser: it keeps the focus in it, closes on Escape, and gives the focus back.
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef();
  useEffect(() => {
    const opener = document.activeElement;
    dialog.current.showModal();
    return () => {
      if (opener?.isConnected && opener !== document.body) opener.focus();
      else document.querySelector("h1")?.focus();
    };
  }, []);
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby="dialog-title"
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
  </dialog>`;
}
