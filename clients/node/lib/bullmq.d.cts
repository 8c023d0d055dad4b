import type { Job } from 'bullmq';
import type { CallOptions, Once } from './index.cjs';

export interface ProcessorOptions<J, R> extends Omit<CallOptions<R>, 'signal'> {
  /** The operation's name, of one processor only. */
  scope: string;
  /** What is compared, as JSON: a job with the same ID and another payload fails. Default: name and data. null: nothing. */
  payload?: ((job: J) => unknown) | null;
}

/**
 * The same processor, which runs once for each job. The key is the queue's name and the job's ID; of an ID that BullMQ has
 * counted, also the time at which the job was added.
 */
export function onceProcessor<J extends Job, R, Rest extends unknown[] = [token?: string, signal?: AbortSignal]>(
  once: Once,
  options: ProcessorOptions<J, Awaited<R>>,
  processor: (job: J, ...rest: Rest) => R,
): (job: J, ...rest: Rest) => Promise<Awaited<R>>;
