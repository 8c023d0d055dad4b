'use strict';

// What a call may reject with. `word` is the same in every client and in the server's problems.
class OnceError extends Error {
  constructor(message, members = {}) {
    super(message);
    this.name = new.target.name;
    this.word = new.target.word;
    Object.assign(this, members);
  }
}
OnceError.word = 'error';

const kind = (name, word, base = OnceError) => {
  const made = { [name]: class extends base {} }[name];
  made.word = word;
  return made;
};

const Unavailable = kind('Unavailable', 'unavailable');

module.exports = {
  OnceError,
  Unavailable,
  KeyMissing: kind('KeyMissing', 'key-missing'),
  InProgress: kind('InProgress', 'in-progress'),
  KeyReused: kind('KeyReused', 'key-reused'),
  OutcomeUnknown: kind('OutcomeUnknown', 'outcome-unknown'),
  ClaimLost: kind('ClaimLost', 'claim-lost'),
  Unrecorded: kind('Unrecorded', 'unrecorded', Unavailable),
  Refused: kind('Refused', 'refused'),
  StoredFailure: kind('StoredFailure', 'failed'),
  ResultNotKept: kind('ResultNotKept', 'result-not-kept'),
  ResultUnreadable: kind('ResultUnreadable', 'result-unreadable'),
  StepReused: kind('StepReused', 'step-reused'),
  TooLarge: kind('TooLarge', 'too-large'),
};
