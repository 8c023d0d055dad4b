'use strict';

// What a model is told in place of a tool's result. `once mcp` says the same: src/frontends/mcp/words.cpp. A test compares
// them, so change both.
const WORDS = {
  refused: 'The tool {tool} was not called: {why}. Nothing was done.',
  mismatch:
    'The tool {tool} was not called: an earlier call had the same {key} and other arguments. This call did nothing. If you ' +
    'mean the earlier call, repeat it with exactly its arguments to get its result. Otherwise do not call again with changed ' +
    'arguments: ask the user.',
  unavailable:
    'The tool {tool} was not called: the store that prevents double calls does not answer. Nothing was done. It is safe to ' +
    'call it again later with the same arguments.',
  'in-progress':
    'An earlier call of {tool} with the same {key} is still running. This call did nothing. Wait, then call it again with ' +
    'exactly the same arguments: you will get the result of the earlier call.',
  'not-kept':
    'An earlier call of {tool} with the same {key} was carried out, but its result is not kept. This call did nothing. Do ' +
    'not call it again: read what you need with another tool, or ask the user.',
  failed:
    'An earlier call of {tool} with the same {key} failed for good: {why}. This call did nothing. Do not call it again: tell ' +
    'the user.',
  unknown:
    'It is not known whether {tool} was carried out: {why}. It may have happened. Do not call it again, also not with other ' +
    'arguments. Tell the user that an operator must find out what happened, and decide.',
  replayed:
    '(once: this is the result of an earlier call with the same {key}. Nothing was done now. If the user really wants it a ' +
    'second time, tell the user that it was not repeated.)',
  superseded:
    "(once: this call took so long that another call with the same {key} was made. This is the other call's result. It may " +
    'have happened twice: tell the user.)',
  lost:
    '(once: this call was carried out, but could not be recorded. Another call with the same {key} may do it a second time: ' +
    'do not call it again, and tell the user.)',
};
const BEGAN = 'an earlier call of it began, and how it ended is not known';
const NO_KEY = 'the arguments have no key: {key} selects nothing of them, or is partly empty';
const NO_RUN = 'the run that it belongs to is missing';
const RUN_KEY = 'arguments in this run';

// Those about one tool, as { outcome, text }. `outcome` is for programs, as `once/outcome` in docs/mcp.md.
class Words {
  constructor(tool, key) {
    this.tool = JSON.stringify(tool);
    this.key = key;
  }

  text(name, why = '') {
    const named = { tool: this.tool, key: this.key, why: why.replace(/\s+/g, ' ').trim() };
    return WORDS[name].replace(/\{(tool|key|why)\}/g, (_, one) => named[one]);
  }

  told(name, why) {
    return { outcome: { failed: 'replayed', superseded: 'lost' }[name] ?? name, text: this.text(name, why) };
  }
}

module.exports = { Words, WORDS, BEGAN, NO_KEY, NO_RUN, RUN_KEY };
