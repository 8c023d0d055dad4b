// A menu of the acts that are less likely.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { act_words } from "./words.js";
import { Icon } from "./icons.js";

export function More({ acts, onAct }) {
  const [open, set_open] = useState(false);
  const box = useRef();
  useEffect(() => {
    if (!open) return undefined;
    const outside = (event) => { if (!box.current?.contains(event.target)) set_open(false); };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [open]);
  const close = () => {
    set_open(false);
    box.current.querySelector("button").focus();
  };
  return html`<span class="more" ref=${box} onKeyDown=${(event) => { if (event.key === "Escape" && open) close(); }}>
    <button type="button" aria-expanded=${open} onClick=${() => set_open(!open)}>More<${Icon} name="chevron" /></button>
    ${open && html`<span class="menu">${acts.map((act) => html`<button type="button" onClick=${() => {
      close();
      onAct(act);
    }}>${act_words[act].name} …</button>`)}</span>`}
  </span>`;
}
