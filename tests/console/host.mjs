// A host of the console for tests: serves web/console as the program does, with its headers, keeps sessions, and
// hands the API to a real `once proxy --admin`, which has the store. Its records and its acts are real.
import http from "node:http";
import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { extname } from "node:path";

const media = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml" };
export const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const always = {
  "Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
  "Cross-Origin-Resource-Policy": "same-origin",
};
const secret = () => randomBytes(16).toString("hex");

async function body_of(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts);
}

// `folder`: the console's files; `admin_port` and `admin_token`: of the real API; `tokens`: token -> {name, role};
// `prefix`: "/ops", as behind a gateway.
export async function start_host({ folder, admin_port, admin_token, tokens, prefix = "" }) {
  const links = new Map(), sessions = new Map(), streams = new Set();
  let port = 0, requests = [];
  const cookie_name = () => `once-${port}`;

  const answer = (response, status, headers, body = "") => {
    response.writeHead(status, { ...always, "Cache-Control": "no-store", ...headers });
    response.end(body);
  };
  const json = (response, status, value, headers = {}) => answer(response, status, { "Content-Type": "application/json", ...headers },
    JSON.stringify(value));
  const problem = (response, status, kind, detail) => answer(response, status, { "Content-Type": "application/problem+json" },
    JSON.stringify({ type: `urn:once:problem:${kind}`, title: kind, status, detail }));

  function session_of(request) {
    const cookies = (request.headers.cookie || "").split("; ");
    const cookie = cookies.find((one) => one.startsWith(`${cookie_name()}=`));
    const session = cookie && sessions.get(cookie.slice(cookie.indexOf("=") + 1));
    return session && session.half === request.headers["once-session"] ? session : null;
  }

  async function sign_in(request, response) {
    const { link, token } = JSON.parse(await body_of(request));
    const who = link ? links.get(link) : tokens[token];
    links.delete(link);
    if (!who) {
      problem(response, 401, "unauthorized", link ? "This link was used, or is older than 60 s." : "The token is wrong.");
      return;
    }
    const cookie = secret(), half = secret();
    sessions.set(cookie, { ...who, half, cookie });
    json(response, 200, { ...who, half }, { "Set-Cookie": `${cookie_name()}=${cookie}; Path=/; HttpOnly; SameSite=Strict` });
  }

  async function api(request, response, path) {
    const changes = request.method !== "GET" && request.method !== "HEAD";
    if (changes && request.headers["sec-fetch-site"] !== "same-origin") {
      problem(response, 403, "forbidden", "This request is from another site.");
      return;
    }
    if (path === "/v1/session" && request.method === "POST") {
      await sign_in(request, response);
      return;
    }
    const session = session_of(request);
    if (!session) {
      problem(response, 401, "unauthorized", "The session has ended: sign in.");
      return;
    }
    if (path === "/v1/session") {
      if (request.method === "DELETE") {
        sessions.delete(session.cookie);
        answer(response, 204, {});
      } else {
        json(response, 200, { name: session.name, role: session.role });
      }
      return;
    }
    if (changes && session.role !== "operator") {
      problem(response, 403, "role", `${session.name} may read, but not change anything.`);
      return;
    }
    let body = await body_of(request);
    if (changes && !/\/(start|stop)$/.test(path)) body = Buffer.from(JSON.stringify({ ...JSON.parse(body), who: session.name }));
    requests.push(`${request.method} ${request.url}`);
    const headers = { authorization: `Bearer ${admin_token}` };
    for (const name of ["if-match", "content-type", "last-event-id"]) if (request.headers[name]) headers[name] = request.headers[name];
    if (body.length) headers["content-length"] = body.length;
    const onward = http.request({ host: "127.0.0.1", port: admin_port, method: request.method,
      path: path + new URL(request.url, "http://host").search, headers }, (from) => {
      response.writeHead(from.statusCode, from.headers);
      response.flushHeaders();
      from.pipe(response);
      from.on("error", () => response.destroy());  // Broken off there, so here.
    });
    if (path === "/v1/events") {
      streams.add(response);
      response.on("close", () => {
        streams.delete(response);
        onward.destroy();
      });
    }
    onward.on("error", () => {
      if (response.headersSent) response.destroy();
      else problem(response, 503, "store-unavailable", "The API does not answer.");
    });
    onward.end(body);
  }

  const server = http.createServer(async (request, response) => {
    try {
      if (!/^(127\.0\.0\.1|localhost)(:\d+)?$/.test(request.headers.host || "")) {
        problem(response, 403, "forbidden", "This host is not ours.");
        return;
      }
      let path = new URL(request.url, "http://host").pathname;
      if (!path.startsWith(prefix)) {
        problem(response, 404, "not-found", "Nothing is here.");
        return;
      }
      path = path.slice(prefix.length);
      if (path.startsWith("/v1/")) {
        await api(request, response, path);
      } else if (path === "/console") {
        answer(response, 308, { Location: "console/" });
      } else if (/^\/console\/([\w.-]+\/)?[\w.-]*$/.test(path)) {
        const name = path.slice("/console/".length) || "index.html";
        const bytes = await readFile(`${folder}/${name}`).catch(() => null);
        if (bytes) answer(response, 200, { "Content-Type": `${media[extname(name)]}; charset=utf-8` }, bytes);
        else problem(response, 404, "not-found", "Nothing is here.");
      } else {
        problem(response, 404, "not-found", "Nothing is here.");
      }
    } catch (error) {
      if (!response.headersSent) problem(response, 400, "bad-request", String(error));
    }
  });
  await new Promise((done) => { server.listen(0, "127.0.0.1", done); });
  port = server.address().port;
  const page = `http://127.0.0.1:${port}${prefix}/console/`;
  return {
    page,
    requests: () => requests,  // Those of the API.
    forget_requests: () => { requests = []; },
    link(who) {
      const made = secret();
      links.set(made, who);
      return `${page}#link=${made}`;
    },
    streams: () => streams.size,
    cut_streams: () => { for (const stream of streams) stream.destroy(); },
    end_sessions() {
      sessions.clear();
      for (const stream of streams) stream.end();
    },
    close: () => new Promise((done) => {
      server.closeAllConnections();
      server.close(done);
    }),
  };
}
