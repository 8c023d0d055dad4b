'use strict';

// One request and its answer, over connections that are kept.
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { uptime } = require('./kernel.cjs');

const MAX_BODY_BYTES = 64 * 1024 * 1024; // More than any record holds.
const START_TIMEOUT_S = 60; // Of `once serve --on-demand`, which may create a store.

// The request had no answer; it may have been carried out. `fatal`: trying again soon is of no use.
class Unreachable extends Error {
  constructor(message, fatal = false) {
    super(message);
    this.fatal = fatal;
  }
}

// What the options say; else ONCE_SERVER, else ONCE_STORE.
function resolve({ server, store, tokenFile, program }) {
  if (server !== undefined && store !== undefined) throw new TypeError('give server or store, not both');
  if (server === undefined && store === undefined) {
    server = process.env.ONCE_SERVER || undefined;
    if (server === undefined) store = process.env.ONCE_STORE || undefined;
  }
  if (server !== undefined) return ofServer(server, tokenFile);
  if (store === undefined) {
    throw new TypeError(
      "no server and no store is named: give { server: 'unix:/run/once/serve.sock' } or { store: 'sqlite:once.db' }, or " +
        'set ONCE_SERVER or ONCE_STORE',
    );
  }
  let named = program || process.env.ONCE_PROGRAM || 'once';
  if (named.includes('/')) named = path.resolve(named);
  return { store, program: named, directory: workingDirectory() };
}

function workingDirectory() {
  try {
    return process.cwd();
  } catch {
    return undefined; // It was removed. The program says so, if the store is seen from there.
  }
}

function ofServer(server, tokenFile) {
  if (server.startsWith('unix:')) {
    if (server.length === 5) throw new TypeError("the server 'unix:' names no socket");
    return { socketPath: path.resolve(server.slice(5)) };
  }
  let url;
  try {
    url = new URL(server);
  } catch {
    url = undefined;
  }
  const host = url && (url.hostname === 'localhost' ? '127.0.0.1' : url.hostname.replace(/^\[|\]$/g, ''));
  if (!url || url.protocol !== 'http:' || !['127.0.0.1', '::1'].includes(host) || !url.port || url.pathname !== '/') {
    throw new TypeError(`the server '${server}' is neither unix:PATH nor http://127.0.0.1:PORT`);
  }
  const file = tokenFile || process.env.ONCE_TOKEN_FILE;
  if (!file) throw new TypeError(`the server '${server}' needs a token: give tokenFile, or set ONCE_TOKEN_FILE`);
  return { host, port: Number(url.port), tokenFile: file };
}

// Another user's server would see every request, and could invent results. Node cannot ask a socket for its peer, so the
// files are looked at before each request: a server on demand has a socket of this user, in a directory that only this user
// can write, so that no other user can put one in its place meanwhile. A socket that the caller has named may be another
// user's, who shares it: but not where any user could have made it first.
function requireTrusted({ socketPath, isOnDemand }) {
  let socket;
  let directory;
  try {
    socket = fs.lstatSync(socketPath);
    directory = fs.statSync(path.dirname(socketPath));
  } catch (error) {
    throw new Unreachable(`no server at ${socketPath}: ${error.message}`);
  }
  const own = process.geteuid();
  if (isOnDemand) {
    if (socket.uid === own && directory.uid === own && !(directory.mode & 0o022)) return;
    throw new Unreachable(`the server at ${socketPath} belongs to user ${socket.uid}, or other users can write its directory`, true);
  }
  if ([own, 0, directory.uid].includes(socket.uid) || !(directory.mode & 0o002)) return;
  throw new Unreachable(
    `the server at ${socketPath} belongs to user ${socket.uid}, and every user can write its directory: use one that only the ` +
      "server's user can write", true,
  );
}

class Transport {
  constructor(options) {
    this.options = options;
    this.agent = new http.Agent({ keepAlive: true, maxFreeSockets: 16 });
    // A mistake is reported where it is made; what the environment names is looked up at the first call.
    if (options.server !== undefined || options.store !== undefined) this.address = resolve(options);
  }

  close() {
    this.agent.destroy();
    this.started = undefined;
  }

  async connectable() {
    try {
      this.address ??= resolve(this.options);
    } catch (error) {
      throw new Unreachable(error.message, true);
    }
    if (this.address.store === undefined) return this.address;
    this.starting ??= start(this.address).finally(() => {
      this.starting = undefined;
    });
    return (this.started ??= await this.starting);
  }

  // `request` is { method, path, body, type }.
  async send(request, timeoutS, signal) {
    const until = uptime() + timeoutS;
    for (let isKept = true; ; isKept = false) {
      const address = await this.connectable();
      try {
        return await this.exchange(address, request, Math.max(until - uptime(), 0.001), signal, isKept);
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        this.started = undefined; // The server that was started on demand may have ended.
        if (!(error instanceof Unreachable) || !isKept || !error.isOfKept || uptime() >= until) throw error;
        // It was idle, and the server may have closed it. Every request may be repeated.
      }
    }
  }

  async exchange(address, { method, path: target, body, type }, timeoutS, signal, isKept) {
    if (address.socketPath !== undefined) requireTrusted(address);
    const headers = { 'Content-Length': body?.length ?? 0 };
    if (body !== undefined) headers['Content-Type'] = type;
    if (address.tokenFile !== undefined) headers.Authorization = `Bearer ${token(address.tokenFile)}`;
    const { socketPath, host, port } = address;
    return new Promise((resolvePromise, reject) => {
      const call = http.request({
        method, path: target, headers, socketPath, host, port, setHost: false,
        agent: isKept ? this.agent : false,
      });
      call.setHeader('Host', socketPath === undefined ? `${host.includes(':') ? `[${host}]` : host}:${port}` : 'once');
      const fail = (error) => {
        const failed = error instanceof Unreachable ? error : new Unreachable(`the connection broke: ${error.message}`);
        failed.isOfKept = call.reusedSocket;
        settle();
        reject(failed);
      };
      const timer = setTimeout(() => call.destroy(new Unreachable('the server did not answer in time')), timeoutS * 1000);
      const abort = () => call.destroy(new Unreachable('the call was cancelled'));
      const settle = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
      };
      signal?.addEventListener('abort', abort, { once: true });
      if (signal?.aborted) abort();
      call.on('error', fail);
      call.on('response', (response) => {
        const parts = [];
        let size = 0;
        response.on('error', fail);
        response.on('data', (part) => {
          parts.push(part);
          if ((size += part.length) > MAX_BODY_BYTES) call.destroy(new Unreachable('the answer is too large'));
        });
        response.on('end', () => {
          if (!response.complete) return fail(new Unreachable('the connection broke in the answer'));
          settle();
          resolvePromise(new Answer(response.statusCode, response.headers, Buffer.concat(parts)));
        });
      });
      call.end(body);
    });
  }
}

// Read for each request, so that a new token is used as soon as it is in the file.
function token(file) {
  let text;
  try {
    text = fs.readFileSync(file, 'latin1').trim();
  } catch (error) {
    throw new Unreachable(`cannot read the token file ${file}: ${error.message}`, true);
  }
  if (!/^[\x21-\x7e]+$/.test(text)) throw new Unreachable(`the token file ${file} holds no token`, true);
  return text;
}

class Answer {
  constructor(status, headers, body) {
    Object.assign(this, { status, headers, body });
    this.word = headers['once-answer'] ?? '';
    this.type = headers['content-type'] ?? '';
  }

  json() {
    let value;
    try {
      value = JSON.parse(this.body.toString());
    } catch {
      value = undefined;
    }
    if (typeof value !== 'object' || value === null) {
      throw new Unreachable("the server's answer is no JSON object: is it `once serve`?", true);
    }
    return value;
  }

  // Its word and its detail; the word is empty if it is no problem of once.
  problem() {
    try {
      const { type = '', detail = '', title = '' } = JSON.parse(this.body.toString());
      const prefix = 'urn:once:problem:';
      return { word: type.startsWith(prefix) ? type.slice(prefix.length) : '', detail: detail || title };
    } catch {
      return { word: '', detail: this.body.toString('utf8', 0, 200) };
    }
  }

  get retryAfterS() {
    const text = this.headers['retry-after'] ?? '';
    return /^\d+$/.test(text) ? Number(text) : 1;
  }
}

// Runs `once serve --on-demand`, which prints its socket. Resolves with the address. The store's URL goes into the
// environment: it may have a password, and every user of the host sees a command line.
function start({ store, program, directory }) {
  const command = [program, 'serve', '--on-demand'];
  return new Promise((resolvePromise, reject) => {
    const child = spawn(command[0], command.slice(1), {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ONCE_STORE: store },
      cwd: directory === workingDirectory() ? undefined : directory, // Whatever the process has changed to.
    });
    const output = [[], []];
    child.stdout.on('data', (part) => output[0].push(part));
    child.stderr.on('data', (part) => output[1].push(part));
    const timer = setTimeout(() => child.kill('SIGKILL'), START_TIMEOUT_S * 1000);
    const end = (error, address) => {
      clearTimeout(timer);
      for (const pipe of [child.stdout, child.stderr]) pipe?.destroy(); // The server that it leaves behind may keep them.
      if (error) reject(new Unreachable(error, true));
      else resolvePromise(address);
    };
    child.on('error', (error) => end(`cannot start ${program}: ${error.message}`));
    // What it printed before its end is read before the pipe's own end.
    child.on('exit', (code, killed) => setImmediate(() => {
      const [printed, errors] = output.map((parts) => Buffer.concat(parts).toString());
      if (code !== 0) {
        return end(`\`${command.join(' ')}\` ended with ${killed ?? `exit code ${code}`}: ${errors.trim().slice(-1000)}`);
      }
      try {
        const { socket } = JSON.parse(printed.split('\n')[0]);
        if (typeof socket !== 'string' || !socket.startsWith('/')) throw new TypeError();
        end(undefined, { socketPath: socket, isOnDemand: true });
      } catch {
        end(`\`${command.join(' ')}\` printed ${JSON.stringify(printed.slice(0, 200))}, not its socket`);
      }
    }));
  });
}

module.exports = { Transport, Unreachable };
