// The same objects as `require` gives, so that `instanceof` holds between both.
import once from './index.cjs';

export const {
  Claim, ClaimLost, InProgress, KeyMissing, KeyReused, Once, OnceError, OutcomeUnknown, Refused, ResultNotKept,
  ResultUnreadable, StepReused, StoredFailure, TooLarge, Unavailable, Unrecorded, commit, currentClaim,
} = once;
