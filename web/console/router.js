// Pages are fragments, so that no label reaches a server's log: #/, #/records?standing=unknown, #/r/HEX,
// #/bulk/ID, #/acts?who=alice, #/client.
import { useEffect, useState } from "./vendor/preact.js";

export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const query = Object.fromEntries(new URLSearchParams(search));
  const record = /^\/r\/((?:[0-9a-f]{2})+)$/i.exec(path);
  if (record) return { page: "record", key: record[1].toLowerCase(), query };
  const bulk = /^\/bulk\/([0-9a-f]{32})$/i.exec(path);
  if (bulk) return { page: "bulk", id: bulk[1].toLowerCase(), query };
  if (path === "/bulk") return { page: "bulks", query };
  if (path === "/acts") return { page: "acts", query };
  if (path === "/client") return { page: "client", query };
  if (path === "/records") return { page: "records", query };
  if (path === "" || path === "/") return { page: "overview", query };
  return { page: "nowhere", query };
}

const fragment = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value);
  return `#${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};
export const to_overview = () => "#/";
export const to_records = (query) => fragment("/records", query);
// Without a client: where one is looked up.
export const to_client = (client) => (client ? to_records({ client }) : "#/client");
export const to_record = (key, query) => fragment(`/r/${key}`, query);
export const to_bulk = (id) => `#/bulk${id ? `/${id}` : ""}`;
export const to_acts = (query) => fragment("/acts", query);

export const go = (hash) => { location.hash = hash; };
// Goes there instead of where we are, so that "back" does not return to here.
export function go_instead(hash) {
  history.replaceState(history.state, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function use_route() {
  const [hash, set_hash] = useState(location.hash);
  useEffect(() => {
    const changed = () => set_hash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return { hash, ...parse(hash) };
}
