// The client of a proxy: the digest that ends the scope of its keys, "shop/POST /charges 5f0c…". The proxy keeps no name.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { go, to_client } from "./router.js";
import { scope_of, hex_of } from "./format.js";

export const client_in = (record) => /^.* \S+ ([0-9a-f]{64})$/.exec(scope_of(record))?.[1];
export const short_client = (client) => client.slice(0, 16);

// A length as eight bytes, and the bytes: the parts of what is digested (docs/http.md).
function part(bytes) {
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(bytes.length));
  return [...length, ...bytes];
}

// `told_by`: "header x-api-key". `name`: what that says.
export async function client_of(told_by, name) {
  const bytes = (text) => new TextEncoder().encode(text);
  const joined = Uint8Array.from([...bytes("once-http-principal"), ...part(bytes(told_by)), ...part(bytes(name))]);
  return hex_of(new Uint8Array(await crypto.subtle.digest("SHA-256", joined)));
}

const sized = (text) => `${new TextEncoder().encode(text).length}:`;
export const by_header = (header, value) => client_of(`header ${header.trim().toLowerCase()}`, `${sized(value.trim())}${value.trim()};`);
export const by_claim = (header, claim, issuer, value) => client_of(`claim ${claim.trim()} of the JWT in ${header.trim()}`, `${sized(issuer)}${issuer}${value}`);

const Text = ({ id, label, value, hint }) => html`<div class="field"><label for=${id}>${label}</label>
  <input id=${id} name=${id} required=${!hint} defaultValue=${value || ""} autocomplete="off" spellcheck=${false} />${hint && html`<span class="muted">${hint}</span>`}</div>`;

export function FindClient() {
  const [kind, set_kind] = useState("header");
  const head = useRef();
  useEffect(() => {
    document.title = "Find a client – once";
    head.current?.focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const of = (name) => event.currentTarget.elements[`client-${name}`].value;
    const client = kind === "header" ? by_header(of("header"), of("value")) : by_claim(of("header"), of("claim"), of("issuer"), of("value"));
    go(to_client(await client));
  };
  return html`<main><h1 tabindex="-1" ref=${head}>Find a client</h1>
    <p>A proxy keeps no names of clients, but a digest of what says who a client is. It is computed in this browser: what you type
      is sent nowhere, and does not stand in the address. A record's page leads to its client, too.</p>
    <form class="find-client" onSubmit=${submit}>
      <div class="field"><label for="client-kind">The proxy knows clients by</label>
        <select id="client-kind" onChange=${(event) => set_kind(event.currentTarget.value)}>
          <option value="header">a header (principal-header)</option><option value="claim">a claim of a JWT (principal-jwt)</option></select></div>
      ${kind === "header" ? html`<${Text} key="h" id="client-header" label="Header" value="X-Api-Key" />`
        : html`<${Text} key="a" id="client-header" label="Header" value="Authorization" /><${Text} id="client-claim" label="Claim" value="sub" />
          <${Text} id="client-issuer" label="Issuer" hint="The claim iss; empty if the tokens have none" />`}
      <${Text} key=${kind} id="client-value" label=${kind === "header" ? "Value of the header" : "Value of the claim"} />
      <div class="buttons"><button class="primary">Find</button></div>
    </form></main>`;
}
