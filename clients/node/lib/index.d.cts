/** Operations that run once, however often they are called: a client of `once serve`. */

/** Milliseconds, or a text such as '30s' or '3d'. */
export type Duration = number | string;
/** What becomes of the claim of work that threw. */
export type Fate = 'release' | 'fail' | 'hold';
/** A text, a whole number or a date; several of them are one key. Missing ones are refused. */
export type KeyPart = string | number | bigint | Date;

export interface OnceOptions {
  /** 'unix:PATH', 'https://HOST:PORT', or 'http://127.0.0.1:PORT' on this machine. Default: ONCE_SERVER. */
  server?: string;
  /** A store, such as 'sqlite:once.db', that the program `once` serves on demand. Default: ONCE_STORE. */
  store?: string;
  /** A file with the token, which an address needs. Read again when the server does not know it any more. Default: ONCE_TOKEN_FILE. */
  tokenFile?: string;
  /** The authorities of the server's certificate, in PEM. Default: ONCE_CA_FILE, else those of the system. It is always verified. */
  caFile?: string;
  /** A client certificate in place of the token, in PEM, with `keyFile`. One that is replaced counts for the next connection. */
  certFile?: string;
  keyFile?: string;
  /** The program. Default: ONCE_PROGRAM, else that of the package for this machine, else `once` on PATH. */
  program?: string;
  /** How long an unreachable server is tried again before a call rejects. Default: 10 s. */
  timeout?: Duration;
  /** Who has the claim, for people. Default: the process's number. */
  holder?: string;
  /** The PostgreSQL store's schema, for commit(). Default: once. */
  schema?: string;
}

export interface CallOptions<R = unknown> {
  /** How long the claim is respected without a sign of life. Default: 30 s. */
  lease?: Duration;
  /** How long to wait for another caller's result. Default: 10 s. */
  wait?: Duration;
  /** How long a result is replayed. Default: 24 hours. */
  retention?: Duration;
  failureRetention?: Duration;
  /** How long the claim of work is renewed that does not end. Then it lapses. Default: as long as the work runs. */
  maxDuration?: Duration;
  /** When the operation counts as overdue. */
  expected?: Duration;
  /** 'hold': a claim whose lease ended is not run again; an operator decides. */
  onLapse?: 'takeover' | 'hold';
  /** Default: 'release', so that a retry runs it. 'fail' is replayed as StoredFailure. */
  onError?: Fate | ((error: unknown) => Fate);
  /** When the end could not be recorded for a lease. Default: 'return' the result, with a warning. */
  onUnrecorded?: 'return' | 'throw';
  /** Try a stored failure again. */
  retryFailures?: boolean;
  /** Names of keys for services downstream: see Claim.derivedKeys. */
  derive?: readonly string[];
  /** A result as JSON, and back. */
  encode?: (result: R) => unknown;
  decode?: (value: any) => R;
  /** Cancels: a wait ends, and `claim.signal` is aborted. A claim whose work throws then lapses. */
  signal?: AbortSignal;
}

export interface FunctionOptions<A extends unknown[], R> extends CallOptions<R> {
  /** What names one operation. */
  key: (...args: A) => KeyPart | readonly KeyPart[] | Promise<KeyPart | readonly KeyPart[]>;
  /** The operation's name, of one function only. A function's own name may change when it is bundled, so it is not taken. */
  scope: string;
  /**
   * What is compared, as JSON: a call with the same key and another payload is refused. Default: all arguments. null:
   * nothing. What JSON would make equal is refused, such as a Map, or an object of a class without toJSON().
   */
  payload?: ((...args: A) => unknown) | null;
}

/** What a model is told in place of a tool's result. */
export interface Told {
  /** For programs, as `once/outcome` of `once mcp` has it. */
  outcome: 'in-progress' | 'mismatch' | 'unknown' | 'refused' | 'unavailable' | 'not-kept' | 'replayed' | 'lost';
  /** For the model: what happened, and what to do. */
  text: string;
  /** There is a result all the same: an earlier call's, or one that could not be recorded. */
  result?: unknown;
}

export interface ToolOptions<A extends unknown[], R> extends CallOptions<R> {
  /** The tool's name, as the model knows it. */
  name: string;
  /** What names one call: a name in the first argument, several of them, or a function of the arguments. Or give `run`. */
  key?: (keyof A[0] & string) | readonly (keyof A[0] & string)[] | ((...args: A) => KeyPart | readonly KeyPart[] | Promise<KeyPart | readonly KeyPart[]>);
  /** The conversation, in which calls with equal arguments are one: a function of the arguments. Kept for ten minutes. */
  run?: (...args: A) => KeyPart | readonly KeyPart[] | Promise<KeyPart | readonly KeyPart[]>;
  /** The operation's name. Default: `name`. */
  scope?: string;
  /** What is compared. Default: the first argument, which the model sends. null: nothing. */
  payload?: ((...args: A) => unknown) | null;
  /** Makes what the tool returns. Default: the text; for a result that is a text, both; other results stay as they are. */
  told?: (told: Told) => unknown;
  /** false: no text is added to a result. */
  tellModel?: boolean;
}

/** The right to run the operation. It is renewed meanwhile. */
export class Claim {
  private constructor();
  readonly scope: string;
  readonly key: string;
  /** 1, or more if attempts before it did not finish. */
  readonly attempt: number;
  /** The fencing token. It grows with each attempt: give it to whatever can refuse an older one. */
  readonly token: number;
  /** Keys for services downstream, the same in each attempt. */
  readonly derivedKeys: Readonly<Record<string, string>>;
  /** How long the claim is certainly ours, without another renewal. */
  readonly validForMs: number;
  /** Aborted when the claim is lost, or the caller cancels. */
  readonly signal: AbortSignal;
  readonly hasEnded: boolean;
  /** Look before you leap: resolves if the claim is certainly still ours, else rejects with ClaimLost. */
  check(): Promise<void>;
  /** For operators: how far the work is. */
  note(text: string): Promise<void>;
  /** The result of fn, kept in the record: an attempt that takes over gets it, and does not call fn. */
  step<T>(name: string, fn: () => T | Promise<T>): Promise<T>;
  /** Nothing was done: the next caller may run it at once. */
  release(reason?: string): Promise<void>;
  /** The outcome is not known: nothing is run until an operator has decided. */
  hold(reason: string): Promise<void>;
  /** A failure that is replayed to later callers as StoredFailure. */
  fail(code: string, message?: string): Promise<void>;
}

/** A client of one `once serve`: one for a program. */
export class Once {
  /** A store's URL, or options. */
  constructor(options?: string | OnceOptions);
  /** The same function, which runs once for each key; later calls get its result. */
  makeIdempotent<A extends unknown[], R>(
    fn: (...args: A) => R,
    options: FunctionOptions<A, Awaited<R>>,
  ): (...args: A) => Promise<Awaited<R>>;
  /**
   * The function of an agent's tool, which acts once for each key. A call that does not run resolves with a text for the
   * model, never with an error that would be answered by another call. Defaults: onLapse 'hold', onError 'fail', wait 30 s.
   */
  tool<A extends unknown[], R, T = string>(
    fn: (...args: A) => R,
    options: Omit<ToolOptions<A, Awaited<R>>, 'told'> & { told?: (told: Told) => T },
  ): (...args: A) => Promise<Awaited<R> | T>;
  /**
   * A decorator of methods, as `@once.idempotent({ key: (order) => order.id, scope: 'charge' })`. The object is neither in
   * the key nor compared. It is for decorators of JavaScript, not for `experimentalDecorators` of TypeScript.
   */
  idempotent<A extends unknown[], R>(
    options: FunctionOptions<A, R>,
  ): <This>(method: (this: This, ...args: A) => Promise<R>, context: { readonly kind: 'method' }) => (this: This, ...args: A) => Promise<R>;
  /** Runs `fn` once for this key, and resolves with its result, or the stored one. */
  call<R>(
    scope: string,
    key: KeyPart | readonly KeyPart[],
    fn: (claim: Claim) => R | Promise<R>,
    options?: CallOptions<R> & { payload?: unknown },
  ): Promise<R>;
  /** Closes idle connections. */
  close(): void;
}

/** The claim of the idempotent function that runs. */
export function currentClaim(): Claim;

/**
 * Records the result in the client's transaction, and commits it: the work's rows and its result, or neither. The store is
 * PostgreSQL, and the client one of `pg` to its database, after BEGIN. It goes last, and the work returns the same result.
 * An attempt that lost its claim commits nothing, and gets ClaimLost. After any error the transaction is rolled back, and
 * the claim is still the work's: after a deadlock it may repeat the transaction. If the connection broke while it
 * committed, the caller of the function gets the result, if it was committed.
 */
export function commit<R>(client: { query(text: string, values?: any[]): Promise<unknown> }, result: R): Promise<R>;

/** The base of all errors here. */
export class OnceError extends Error {
  readonly word: string;
}
/** No key, or a part of it is missing. Nothing ran. */
export class KeyMissing extends OnceError {}
/** Another caller runs it, and did not finish within `wait`. */
export class InProgress extends OnceError {
  readonly retryAfterMs: number;
}
/** The key was used with another payload. */
export class KeyReused extends OnceError {}
/** It began, and its outcome is not known: an operator decides. */
export class OutcomeUnknown extends OnceError {}
/** The lease ended while the work ran, and no result is stored. */
export class ClaimLost extends OnceError {}
/** No server, or no store. Nothing ran, if a call's begin rejects with it. Unrecorded and check() are of work that runs. */
export class Unavailable extends OnceError {}
/** The work ran, and its end could not be recorded within a lease. */
export class Unrecorded extends Unavailable {}
/** The server refused the request. The text says whether the work ran: a finish may be refused too. */
export class Refused extends OnceError {
  readonly status: number;
  readonly reason: string;
}
/** The operation failed before, and that is its result. */
export class StoredFailure extends OnceError {
  readonly code: string;
  readonly failure: string;
  readonly result?: Buffer;
  readonly contentType: string;
}
/** It ran, and its result was too large to keep, or was not JSON. */
export class ResultNotKept extends OnceError {}
/** It ran, and its result is not what this function can read. */
export class ResultUnreadable extends OnceError {
  readonly body: Buffer;
  readonly contentType: string;
}
/** A step's name is used once. */
export class StepReused extends OnceError {}
/** The record has no room for this step. */
export class TooLarge extends OnceError {}
