'use strict';

// What comes from the kernel at the moment of the call: randomness, and the time since the start of the machine.
const fs = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');

let urandom;

// Never of crypto.randomBytes(): that is a generator inside the process, and two copies of a process would draw the same.
function randomId() {
  urandom ??= fs.openSync('/dev/urandom', 'r');
  const bytes = Buffer.alloc(16);
  if (fs.readSync(urandom, bytes, 0, 16, null) !== 16) throw new Error('/dev/urandom gave no bytes');
  return bytes.toString('hex');
}

let suspendedS = 0;
let base;
let counter; // Stays open: a process without free descriptors must still finish its work.

// Seconds on a clock that runs while the machine is suspended. Node has only one that does not; the kernel's counter of
// hundredths says how much that has missed.
function uptime() {
  const running = Number(process.hrtime.bigint()) / 1e9;
  counter ??= fs.openSync('/proc/uptime', 'r');
  const text = Buffer.alloc(64);
  const whole = Number(text.toString('latin1', 0, fs.readSync(counter, text, 0, 64, 0)).split(' ')[0]);
  base ??= whole - running;
  const missed = whole - running - base;
  if (missed > suspendedS + 0.05) suspendedS = missed;
  return running + suspendedS;
}

// 10 ms, doubling to 1 s, each cut by up to a half so that clients do not come together.
function pauses(signal) {
  let full = 10;
  return async (most = Infinity) => {
    const ms = Math.min(full * (0.5 + Math.random() / 2), most * 1000);
    full = Math.min(full * 2, 1000);
    await sleep(Math.max(ms, 1), undefined, { signal });
  };
}

module.exports = { randomId, uptime, pauses, sleep };
