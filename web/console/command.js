// The command that does what a button does. It is made to be pasted: all is quoted, so that
// nothing that is stored or typed breaks out of it, or reaches the terminal as a control character.

// 'text' for a shell; $'text' (bash, zsh, ksh) if it has anything but printable ASCII.
export function quoted(text) {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (/^[\x20-\x7e]*$/.test(text)) return `'${text.replace(/'/g, "'\\''")}'`;
  const escaped = Array.from(new TextEncoder().encode(text), (byte) => {
    if (byte === 0x27 || byte === 0x5c) return `\\${String.fromCharCode(byte)}`;
    return byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`;
  });
  // In $'\x4ab' some shells take more than two digits: what follows an escape is escaped, if it is one.
  for (let at = 1; at < escaped.length; ++at)
    if (/^\\x..$/.test(escaped[at - 1]) && /^[0-9a-fA-F]$/.test(escaped[at]))
      escaped[at] = `\\x${escaped[at].charCodeAt(0).toString(16)}`;
  return `$'${escaped.join("")}'`;
}

const words = { complete: "resolve", fail: "resolve", release: "release", extend: "extend", remove: "rm" };

// `form`: what the dialog has (acts.js). `store`: the store's name, if it can be named so on a command line.
export const command_for = (act, record, form, where) =>
  command(act, [...named(record), "--if-revision", String(record.revision)], form, where);

// By scope and key, as people know them, if they are text; otherwise by both in one. With a label as its name, the
// command would have to search.
const named = (record) => (typeof record.scope === "string" && record.key
  ? [...(record.scope ? [`--scope=${quoted(record.scope)}`] : []), `--key=${quoted(record.key)}`]
  : ["--stored-key-hex", record.stored_key_hex]);

// The same for all that a filter of the page selects, which asks at the terminal for their number; or for records one
// after the other. Null: no command selects so.
export function command_for_many(act, { filter, records }, form, where) {
  if (form.kind === "reconciled" || form.reconciled) return null;
  if (filter) {
    if (filter.q || filter.reconciled || filter.client) return null;
    const { standing, ...others } = filter;
    const flags = Object.entries(others).flatMap(([name, value]) => [`--${name}`, quoted(value)]);
    return command(act, ["--all", ...(standing === "overdue" ? ["--overdue"] : standing ? ["--state", quoted(standing)] : []), ...flags], form, where);
  }
  const rows = records.map((record) => `${record.stored_key_hex} ${record.revision}`).join("\n");
  return `while read -r key revision; do ${command(act, ["--stored-key-hex", '"$key"', "--if-revision", '"$revision"'], form, where)}; done <<END\n${rows}\nEND`;
}

function command(act, selected, form, { who, store }) {
  const parts = ["once", words[act]];
  const flag = (name, value) => { if (value) parts.push(name, quoted(value)); };
  if (/^sqlite:\//.test(store || "")) flag("--store", store);
  parts.push(...selected);
  let before = "";
  if (act === "complete") {
    parts.push("--as", "completed");
    if (form.kind === "run") flag("--exit-code", form.exit_code);
    if (form.kind === "http") {
      flag("--status", form.http_status);
      if (form.content_type) flag("--header", `Content-Type: ${form.content_type}`);
    }
    if (form.kind === "plain") flag("--content-type", form.content_type);
    if (form.result) {
      before = `printf %s ${quoted(form.result)} | `;
      parts.push("--result", "-");
    } else if (form.kind !== "run" && !form.is_empty) {
      parts.push("--result", "FILE");  // For the reader to fill in.
    }
  }
  if (act === "fail") {
    parts.push("--as", "failed");
    flag("--code", form.code);
    flag("--message", form.message);
  }
  if (act === "extend") {
    if (form.on_lapse) flag("--on-lapse", form.on_lapse);
    else flag("--by", form.by);
  }
  if (form.retention && (act !== "extend" || form.on_lapse === "takeover") && act !== "remove") flag("--retention", form.retention);
  if (form.any_payload && act === "release") parts.push("--any-payload");
  if (form.force && act !== "extend") parts.push("--force");
  parts.push("--reason", quoted(form.reason || "why"));
  flag("--who", who);
  return before + parts.join(" ");
}

// True if it reached the clipboard, which browsers give to pages of HTTPS and loopback only.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
