import type { Duration, Once } from './index.cjs';

/** All clients are one. */
export const SHARED: unique symbol;

export interface HttpOptions<Request = any> {
  once: Once;
  /** Whose key it is: the name of a header, a function of the request, or SHARED. There is no default. */
  principal: string | ((request: Request) => string | number | undefined | null) | typeof SHARED;
  /** In front of the scope, where services share a store. */
  service?: string;
  /** Default: POST and PATCH. */
  methods?: readonly ('POST' | 'PATCH' | 'PUT' | 'DELETE')[];
  keyHeader?: string;
  /** Requests without a key pass through, unprotected. */
  optionalKey?: boolean;
  /** A larger answer is given once, and a retry gets 410. Default: 1 MiB. */
  maxAnswerBytes?: number;
  /** After 502 to 504, and when the process dies. Default: 'hold', an operator decides. */
  onAmbiguous?: 'hold' | 'takeover';
  wait?: Duration;
  lease?: Duration;
  retention?: Duration;
  /** How long the claim of a handler that does not end its response is renewed. Default: 10 minutes. */
  maxDuration?: Duration;
}
