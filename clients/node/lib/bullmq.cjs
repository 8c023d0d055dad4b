'use strict';

// A processor of BullMQ that runs once for each job. BullMQ knows its own errors by their names, so it is not loaded here.
const { internal, Once, ClaimLost, InProgress, KeyReused, OutcomeUnknown, ResultNotKept, ResultUnreadable, StoredFailure, Unavailable } =
  require('./index.cjs');

const PAUSE_MS = 1000;
// No retry changes these: an operator decides, or the producer is wrong.
const FINAL = [OutcomeUnknown, KeyReused, StoredFailure, ResultNotKept, ResultUnreadable];
// What processors throw to leave a job for later.
const LATER = ['DelayedError', 'WaitingError', 'WaitingChildrenError', 'RateLimitError'];

const named = (name, error) => Object.assign(new Error(error.message, { cause: error }), { name });

// BullMQ counts IDs itself, and from 1 again when Redis has lost its data. IDs that a producer chooses are never numbers.
function keyOf({ queueName, id, timestamp }) {
  return /^\d+$/.test(id) ? [queueName, id, timestamp] : [queueName, id];
}

function onceProcessor(once, { scope, payload = ({ name, data }) => ({ name, data }), onError = 'release', wait = 0, ...more } = {}, processor) {
  if (!(once instanceof Once)) throw new TypeError('the client is missing: new Once(...), of this copy of the package');
  if (typeof processor !== 'function') throw new TypeError('the processor is missing: a function of a job');
  if (payload !== null && typeof payload !== 'function') throw new TypeError('payload is a function of the job that returns what is compared, or null');
  if ('signal' in more) throw new TypeError('BullMQ cancels a job by the signal that it gives to the processor');
  new internal.Options(scope, { ...more, onError, wait }); // Mistakes are reported where they are made.
  const options = {
    ...more, wait,
    onError: (error) => (LATER.includes(error?.name) ? 'release' : typeof onError === 'function' ? onError(error) : onError),
  };

  async function run(job, token, ...rest) {
    if (internal.isDisabled(scope)) return processor(job, token, ...rest);
    let hasRun = false;
    try {
      return await once.call(scope, keyOf(job), () => {
        hasRun = true;
        return processor(job, token, ...rest);
      }, { ...options, payload: payload === null ? undefined : payload(job) });
    } catch (error) {
      // Another worker has it, or nothing was run: later, and without using up an attempt.
      const isLater = hasRun ? error instanceof ClaimLost : error instanceof InProgress || error instanceof Unavailable;
      if (isLater) {
        await job.moveToDelayed(Date.now() + (error.retryAfterMs ?? PAUSE_MS), token);
        throw named('DelayedError', error);
      }
      if (!hasRun && FINAL.some((kind) => error instanceof kind)) throw named('UnrecoverableError', error);
      throw error;
    }
  }
  return Object.defineProperty(run, 'length', { value: processor.length }); // By it BullMQ decides whether to give a signal.
}

module.exports = { onceProcessor };
