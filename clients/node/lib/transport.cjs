'use strict';

// One request and its answer, over connections that are kept.
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const { createRequire } = require('node:module');
const net = require('node:net');
const path = require('node:path');
const tls = require('node:tls');
const { uptime } = require('./kernel.cjs');

const MAX_BODY_BYTES = 64 * 1024 * 1024; // More than any record holds.
// Where Linux systems keep the authorities that they believe: Debian, Fedora and RHEL, SUSE, Alpine. Node has others built in.
const SYSTEM_CAS = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt', '/etc/ssl/ca-bundle.pem', '/etc/ssl/cert.pem'];
const UNKNOWN_AUTHORITY = [
  'UNABLE_TO_GET_ISSUER_CERT', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE', 'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
];
// How long a connection is kept unused. What forgets a silent one between here and the server does it later.
const MAX_IDLE_S = 60;
const START_TIMEOUT_S = 60; // Of `once serve --on-demand`, which may create a store.

// The request had no answer; it may have been carried out. `fatal`: trying again soon is of no use.
class Unreachable extends Error {
  constructor(message, fatal = false) {
    super(message);
    this.fatal = fatal;
  }
}

// What the options say; else ONCE_SERVER, else ONCE_STORE.
function resolve(options) {
  let { server, store } = options;
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined && (typeof value !== 'string' || value === '')) {
      throw new TypeError(`${name} is ${value === '' ? 'empty' : 'no text'}: leave it out, or give it a value`);
    }
  }
  if (server !== undefined && store !== undefined) throw new TypeError('give server or store, not both');
  if (server === undefined && store === undefined) {
    server = variable('ONCE_SERVER');
    if (server === undefined) store = variable('ONCE_STORE');
  }
  if (server !== undefined) return ofServer(server, options);
  if (store === undefined) {
    throw new TypeError(
      "no server and no store is named: give { server: 'unix:/run/once/serve.sock' } or { store: 'sqlite:once.db' }, or " +
        'set ONCE_SERVER or ONCE_STORE',
    );
  }
  refuse(options, ['tokenFile', 'caFile', 'certFile', 'keyFile'], 'for a server at an address');
  let named = options.program || process.env.ONCE_PROGRAM || carried() || 'once';
  if (named.includes('/')) named = path.resolve(named);
  return { store, program: named, directory: workingDirectory() };
}

// An empty one is a mistake, such as another variable that is missing. It must not choose another server, or trust more
// authorities.
function variable(name) {
  const text = process.env[name];
  if (text === '') throw new TypeError(`${name} is empty: unset it, or give it a value`);
  return text;
}

const isLoopback = (host) => host === '::1' || (net.isIPv4(host) && host.startsWith('127.'));

function refuse(options, names, why) {
  const found = names.find((name) => options[name] !== undefined);
  if (found !== undefined) throw new TypeError(`${found} is ${why}`);
}

// The program of the package for this machine, an optional dependency of this one.
function carried() {
  try {
    // Not require.resolve(), which bundlers would look into.
    return createRequire(__filename).resolve(`@once-idempotency/${process.platform}-${process.arch}/bin/once`);
  } catch {
    return undefined;
  }
}

function workingDirectory() {
  try {
    return process.cwd();
  } catch {
    return undefined; // It was removed. The program says so, if the store is seen from there.
  }
}

function ofServer(server, options) {
  if (server.startsWith('unix:')) {
    if (server.length === 5) throw new TypeError("the server 'unix:' names no socket");
    refuse(options, ['tokenFile', 'caFile', 'certFile', 'keyFile'], 'for a server at an address: who may use a socket, its mode says');
    return { socketPath: path.resolve(server.slice(5)) };
  }
  if (server.includes('@')) { // Not repeated: it may be a secret.
    throw new TypeError(
      "the server's URL has a user or a token in it, where logs would show it: name a file with the token in tokenFile or " +
        'ONCE_TOKEN_FILE',
    );
  }
  let url;
  try {
    url = /^https?:\/\/[^/\\]/i.test(server) ? new URL(server) : undefined;
  } catch {
    url = undefined;
  }
  const isTls = url?.protocol === 'https:';
  const port = Number(url?.port || (isTls ? 443 : 0));
  if (!url || !(isTls || url.protocol === 'http:') || !url.hostname || !port || url.pathname !== '/' || url.search || url.hash) {
    throw new TypeError(`the server '${server.split(/[?#]/)[0]}' is none of unix:PATH, https://HOST:PORT and http://127.0.0.1:PORT`);
  }
  let host = url.hostname.replace(/^\[|\]$/g, '');
  if (!isTls) {
    if (host === 'localhost') host = '127.0.0.1';
    if (!isLoopback(host)) {
      throw new TypeError(
        `the server '${server}' would get the token and every result unencrypted, and anyone on the way could change them: ` +
          'use https://, or http:// to 127.0.0.1',
      );
    }
    refuse(options, ['caFile', 'certFile', 'keyFile'], 'for https://');
  }
  const { certFile, keyFile } = options;
  if ((certFile === undefined) !== (keyFile === undefined)) throw new TypeError('a client certificate needs both certFile and keyFile');
  if (certFile !== undefined && options.tokenFile !== undefined) {
    throw new TypeError('give tokenFile, or certFile with keyFile, not both: a server takes one of them');
  }
  const tokenFile = options.tokenFile ?? (certFile === undefined ? variable('ONCE_TOKEN_FILE') : undefined);
  if (certFile === undefined && !tokenFile) {
    throw new TypeError(`the server '${server}' needs a token: give tokenFile, or set ONCE_TOKEN_FILE`);
  }
  const caFile = options.caFile ?? (isTls ? variable('ONCE_CA_FILE') : undefined);
  return {
    host,
    port,
    authority: `${host.includes(':') ? `[${host}]` : host}:${port}`,
    token: certFile === undefined ? new Token(path.resolve(tokenFile)) : undefined,
    trust: isTls ? new Trust(caFile, certFile, keyFile) : undefined,
  };
}

// What a file has. It is read at the first request, and again when the server does not know the token any more.
class Token {
  #text;

  constructor(file) {
    this.file = file;
  }

  text() {
    return (this.#text ??= this.#read());
  }

  // Whether the file has another one than the server has refused.
  isRenewed(refused) {
    try {
      this.#text = this.#read();
    } catch {
      return false; // It is just being replaced, perhaps.
    }
    return this.#text !== refused;
  }

  #read() {
    let text;
    let kind;
    try {
      kind = fs.statSync(this.file);
      if (!kind.isFile()) throw new Unreachable(`the token file ${this.file} is not a regular file`, true);
      if (process.platform !== 'win32' && kind.mode & 0o006) { // As the server has it.
        throw new Unreachable(
          `the token file ${this.file} can be opened by every user of this host: chmod o-rwx it (in Kubernetes: defaultMode: 0440)`, true,
        );
      }
      text = fs.readFileSync(this.file, 'latin1').trim();
    } catch (error) {
      if (error instanceof Unreachable) throw error;
      throw new Unreachable(`cannot read the token file ${this.file}: ${error.code}`, true);
    }
    if (!/^[\x21-\x7e]+$/.test(text)) throw new Unreachable(`the token file ${this.file} holds no token`, true);
    return text;
  }
}

// How TLS is spoken: whom the client believes, and what it shows. Files that were replaced count for the next connection.
class Trust {
  #state;
  #context;

  constructor(...files) {
    [this.caFile, this.certFile, this.keyFile] = files.map((file) => file && path.resolve(file));
  }

  context() {
    const named = [this.caFile, this.certFile, this.keyFile].filter((file) => file !== undefined);
    try {
      const state = named.map((file) => fs.statSync(file)).map(({ ino, size, mtimeMs }) => `${ino} ${size} ${mtimeMs}`).join();
      if (this.#state !== state) {
        this.#context = this.#make();
        this.#state = state;
      }
      return this.#context;
    } catch (error) {
      // Files that were good before are just being replaced, perhaps.
      throw new Unreachable(`cannot use ${named.join(' and ') || 'TLS'}: ${error.message}`, this.#context === undefined);
    }
  }

  #make() {
    const [cert, key] = [this.certFile, this.keyFile].map((file) => file && fs.readFileSync(file));
    const ca = this.caFile === undefined ? systemAuthorities() : fs.readFileSync(this.caFile);
    if (this.caFile !== undefined && !ca.includes('-----BEGIN ')) throw new TypeError('it has no certificate');
    return tls.createSecureContext({ ca, cert, key, minVersion: 'TLSv1.2' });
  }
}

// Undefined: those of Node.
function systemAuthorities() {
  const file = process.env.SSL_CERT_FILE || SYSTEM_CAS.find((one) => fs.existsSync(one));
  const more = process.env.NODE_EXTRA_CA_CERTS;
  return file && [file, ...(more ? [more] : [])].map((one) => fs.readFileSync(one));
}

// Not by the certificate's subject, as Node does it where there is no other name: it is any text that its authority let pass.
const checkName = (host, certificate) => tls.checkServerIdentity(host, { ...certificate, subject: {} });

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
    this.agents = {};
    // A mistake is reported where it is made; what the environment names is looked up at the first call.
    if (options.server !== undefined || options.store !== undefined) this.address = resolve(options);
  }

  close() {
    for (const agent of Object.values(this.agents)) agent.destroy();
    this.started = undefined;
  }

  // A TLS session that is resumed would not be verified again, so none is.
  agent(isTls) {
    const options = { keepAlive: true, maxFreeSockets: 16, timeout: MAX_IDLE_S * 1000, maxCachedSessions: 0 };
    return (this.agents[isTls] ??= new (isTls ? https : http).Agent(options));
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
    for (let isKept = true; ;) {
      const address = await this.connectable();
      const shown = address.token?.text();
      try {
        const answer = await this.exchange(address, shown, request, Math.max(until - uptime(), 0.001), signal, isKept);
        // The file may have another token by now.
        if (answer.status !== 401 || !address.token?.isRenewed(shown) || uptime() >= until) return answer;
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        this.started = undefined; // The server that was started on demand may have ended.
        if (!(error instanceof Unreachable) || !isKept || !error.isOfKept || uptime() >= until) throw error;
        isKept = false; // It was idle, and the server may have closed it. Every request may be repeated.
      }
    }
  }

  async exchange(address, shown, { method, path: target, body, type }, timeoutS, signal, isKept) {
    if (address.socketPath !== undefined) requireTrusted(address);
    const headers = { 'Content-Length': body?.length ?? 0 };
    if (body !== undefined) headers['Content-Type'] = type;
    if (shown !== undefined) headers.Authorization = `Bearer ${shown}`;
    const { socketPath, host, port, trust } = address;
    // Said here, because variables of the environment switch it off elsewhere.
    const secure = trust && { secureContext: trust.context(), rejectUnauthorized: true, checkServerIdentity: checkName };
    return new Promise((resolvePromise, reject) => {
      const call = (trust ? https : http).request({
        method, path: target, headers, socketPath, host, port, autoSelectFamily: true, ...secure, setHost: false,
        agent: isKept ? this.agent(trust !== undefined) : false,
      });
      call.setHeader('Host', address.authority ?? 'once');
      const fail = (error) => {
        const failed = error instanceof Unreachable ? error : broken(address, error, call.socket?.authorizationError);
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
        const { 'content-length': length, 'transfer-encoding': coding } = response.headers;
        if (length === undefined && coding === undefined) call.destroy(new Unreachable('the answer is no HTTP of `once serve`'));
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
          resolvePromise(new Answer(response.statusCode, response.headers, Buffer.concat(parts), advice(address, response.statusCode)));
        });
      });
      call.end(body);
    });
  }
}

// A certificate that is refused stays so: trying again soon is of no use.
function broken({ authority, trust }, error, unauthorized) {
  if (unauthorized) {
    const help = UNKNOWN_AUTHORITY.includes(error.code) ? "; name its authority's file in caFile or ONCE_CA_FILE" : '';
    return new Unreachable(`the certificate of https://${authority} is not accepted: ${error.message}${help}`, true);
  }
  if (trust && /_ALERT_.*CERTIFICATE|_ALERT_UNKNOWN_CA/.test(error.code)) {
    return new Unreachable(
      trust.certFile === undefined ? `https://${authority} wants a client certificate: name it in certFile and keyFile`
        : `https://${authority} does not accept the client certificate in ${trust.certFile}: ${error.code}`, true,
    );
  }
  return new Unreachable(`the connection broke: ${error.message}`);
}

// What a person can do about a response of 401 or 403.
function advice({ authority, token }, status) {
  if (authority === undefined || ![401, 403].includes(status)) return '';
  if (status === 403) return '; ask who runs the server to allow this client claims';
  if (token === undefined) return '; this server wants a token: name its file in tokenFile or ONCE_TOKEN_FILE';
  return `; put a token that the server knows into ${token.file}, which is read again then`;
}

class Answer {
  constructor(status, headers, body, advised) {
    Object.assign(this, { status, headers, body, advised });
    this.word = headers['once-answer'] ?? '';
    this.type = headers['content-type'] ?? '';
  }

  // Else something in between has answered, such as a gateway whose server is away.
  get isOfOnce() {
    return this.word !== '' || this.problem().word !== '';
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
