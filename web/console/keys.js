// Keys, for those who want them: they can be turned off (WCAG 2.1.4), and none works while something is typed.
import { html, useLayoutEffect, useRef } from "./vendor/preact.js";
import { Dialog } from "./parts.js";

const setting = `once-keys${new URL("../", import.meta.url).pathname}`;
export const keys_on = () => localStorage.getItem(setting) !== "off";
export const set_keys = (on) => (on ? localStorage.removeItem(setting) : localStorage.setItem(setting, "off"));

const help = [
  ["/", "find"], ["g o", "overview"], ["g r", "records"], ["g b", "bulk acts"], ["g a", "acts"],
  ["j  k", "next, previous row"], ["x", "select the row, or not"], ["X", "select all rows, or none"], ["Enter", "open"], ["u", "back"],
  [".", "to the acts"], ["v", "show the result, or hide it"], ["y", "copy the link"], ["p", "pause, or go on"], ["?", "this help"],
];

const typing = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;

// `actions`: key ("g o") -> what to do.
export function use_keys(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useLayoutEffect(() => {  // With the page, not after it: the first key counts.
    let prefix = "";
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys_on() || typing(event.target) || document.querySelector("dialog[open]")) {
        prefix = "";
        return;
      }
      const name = prefix + event.key;
      prefix = event.key === "g" ? "g " : "";
      const action = latest.current[name];
      if (!action) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export function move_in_list(by) {
  const links = [...document.querySelectorAll(".row-link")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement.closest("tr")?.querySelector(".row-link"));
  links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

// Selects the row that has the focus, or all.
export function select_in_list(all) {
  (all ? document.querySelector("thead .select input") : document.activeElement.closest("tr")?.querySelector(".select input"))?.click();
}

export const KeyHelp = ({ onClose }) => html`<${Dialog} title="Keys" onClose=${onClose}>
  <dl class="keys">${help.map(([key, means]) => html`<dt><kbd>${key}</kbd></dt><dd>${means}</dd>`)}</dl>
  <label class="check"><input type="checkbox" checked=${keys_on()} onChange=${(event) => set_keys(event.currentTarget.checked)} />Use these keys</label>
  <div class="buttons"><button type="button" class="primary" onClick=${onClose}>Close</button></div>
<//>`;
