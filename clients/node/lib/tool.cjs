'use strict';

// Tools of agents: functions that run once for each key, and answer in words for the model where they do not run.
const { createHash } = require('node:crypto');
const { internal, KeyMissing } = require('./index.cjs');
const { compared, keyText } = require('./values.cjs');
const { warn } = require('./claim.cjs');
const { BEGAN, NO_KEY, NO_RUN, RUN_KEY, Words } = require('./words.cjs');

// What ends a call before its end: the framework asks a person, and calls again with the reply. Not a result, not a failure.
const isPause = (value) => value?.is_bubble_up === true || value?.code === -32042 || value?.resultType === 'input_required';

const nameOf = (key) => (typeof key === 'function' ? 'key' : typeof key === 'string' ? key : `[${key.join(', ')}]`);
const fromArguments = (key) => {
  if (typeof key === 'function') return key;
  const names = [key].flat();
  return (args) => (typeof key === 'string' ? args?.[key] : names.map((name) => args?.[name]));
};

class ToolOptions extends internal.Options {
  constructor(scope, given, words, tell) {
    super(scope, given);
    this.words = words;
    this.tell = tell;
  }

  fate(error) {
    return isPause(error) ? 'release' : super.fate(error);
  }

  replayed(stored, key) {
    return this.tell({ ...this.words.told('replayed'), result: this.decoded(stored, key) });
  }

  superseded(stored, key) {
    return this.tell({ ...this.words.told('superseded'), result: this.decoded(stored, key) });
  }

  lost(error, result) {
    warn(`${error.message}; its work has run, and may run again`);
    return this.tell({ ...this.words.told('lost'), result });
  }
}

// Only a text has room for another one.
const asText = ({ text, result }) => (result === undefined ? text : typeof result === 'string' ? `${result}\n\n${text}` : result);

// `run` runs work once, as Once has it, and `claimScope` refuses another function of the scope.
function tooled(fn, given = {}, { run, claimScope }) {
  const { name, key, run: runOf, scope = name, payload = (args) => args, told = asText, tellModel = true, ...more } = given;
  if (typeof fn !== 'function') throw new TypeError('tool() takes the function of a tool: use it inside of what the framework makes of it');
  if (/Generator/.test(fn.constructor.name)) throw new TypeError('a generator has no single result');
  if (typeof name !== 'string' || name === '') throw new TypeError("name is missing: the tool's name, as the model knows it");
  if ((key === undefined) === (runOf === undefined)) {
    throw new TypeError(
      "a tool needs key, which names what happens once, such as 'orderId'; or run, a function that returns the conversation in " +
        'which equal arguments are one call, such as (args, context) => context.threadId',
    );
  }
  if (key !== undefined && typeof key !== 'function' && ![key].flat().every((one) => typeof one === 'string' && one !== '')) {
    throw new TypeError('key is the name of an argument, a list of names, or a function of the arguments');
  }
  if (runOf !== undefined && typeof runOf !== 'function') throw new TypeError('run is a function of the arguments, such as (args, context) => context.threadId');
  if (typeof payload !== 'function' && (payload !== null || runOf !== undefined)) {
    throw new TypeError('payload is a function of the arguments that returns what is compared; with key it may be null');
  }
  const words = new Words(name, runOf === undefined ? nameOf(key) : RUN_KEY);
  const tell = (about) => (about.result !== undefined && !tellModel ? about.result : told(about));
  const options = new ToolOptions(
    scope, { wait: 30_000, onLapse: 'hold', onError: 'fail', ...(runOf && { retention: '10m' }), ...more }, words, tell,
  );
  claimScope(scope, fn);
  const keyOf = fromArguments(runOf ?? key);

  async function members(args) {
    const text = keyText(await keyOf(...args));
    const compare = payload === null ? {} : compared(payload(...args) ?? null, '; name what counts by payload, such as ({ order }) => order');
    if (runOf === undefined) return [text, compare];
    const digest = compare.fingerprint ?? `sha256:${createHash('sha256').update(compare.payload_json).digest('hex')}`;
    return [keyText([text, digest]), {}];
  }

  function toldBefore(error) {
    switch (error.word) {
      case 'in-progress':
        return words.told('in-progress');
      case 'key-reused':
        return words.told('mismatch');
      case 'outcome-unknown':
        return words.told('unknown', BEGAN);
      case 'failed':
        return words.told('failed', error.failure || error.code);
      case 'result-not-kept':
      case 'result-unreadable':
        return words.told('not-kept');
      case 'unavailable':
      case 'refused':
        warn(`the tool '${name}' was not called: ${error.message}`);
        return error.word === 'unavailable' ? words.told('unavailable') : words.told('refused', 'the store refused it');
      default:
        return undefined;
    }
  }

  function toldLater(error) {
    if (!['claim-lost', 'unrecorded'].includes(error?.word)) return undefined;
    warn(error.message);
    return words.told('unknown', 'its claim was lost while it ran');
  }

  const called = async function (...args) {
    if (internal.isDisabled(scope)) return fn.apply(this, args);
    let hasRun = false;
    const work = async (claim) => {
      hasRun = true;
      const result = await fn.apply(this, args);
      if (isPause(result)) await claim.release('it asks for input');
      return result;
    };
    try {
      return await run(options, ...(await members(args)), work, more.signal);
    } catch (error) {
      if (error instanceof KeyMissing && !hasRun) {
        return told(words.told('refused', runOf === undefined ? NO_KEY.replace('{key}', JSON.stringify(words.key)) : NO_RUN));
      }
      const about = hasRun ? toldLater(error) : toldBefore(error);
      if (about === undefined) throw error;
      return told(about);
    }
  };
  Object.defineProperty(called, 'name', { value: fn.name || name });
  Object.defineProperty(called, 'length', { value: fn.length });
  return called;
}

module.exports = { tooled };
